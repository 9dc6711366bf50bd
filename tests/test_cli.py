"""The command line as a user meets it."""

import io
import json
import signal
import subprocess
import sys
import types

import pytest

from spantail import __version__, cli
from spantail.commands import formats
from spantail.formats.row import Files, Format, Gives, Root
from spantail.settings import SETTINGS


def row(agent="some-agent", **kwargs) -> Format:
    made = Files("main", 0, "*.jsonl", "lines", object, object)
    gives = Gives("all", "stated", "yes | no", "computed", "yes", "nested")
    fields = {"roots": (Root(".some/x", "SOME_HOME", "x"),), "files": (made, made), "versions": "1.0"}
    return Format(agent=agent, title="Some", gives=gives, **(fields | kwargs))


@pytest.fixture
def program(monkeypatch, tmp_path):
    """The program with a known table and with a `run` that hands out its Config."""
    seen = []
    run = types.ModuleType("spantail.commands.run")
    run.main = lambda config: seen.append(config) or 0
    table = types.ModuleType("spantail.formats")
    table.TABLE = (row(), row("other"))
    table.__path__ = []
    monkeypatch.setitem(sys.modules, "spantail.commands.run", run)
    monkeypatch.setattr("spantail.commands.run", run, raising=False)
    monkeypatch.setitem(sys.modules, "spantail.formats", table)
    for name in [
        name for name in __import__("os").environ if name.startswith(("SPANTAIL_", "OTEL_", "XDG_"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return seen


def test_help_names_every_setting_with_its_default(capsys):
    """--help is the manual: every flag, what it is without it, and examples."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        assert setting.flag in text
        assert setting.is_switch or f"(default: {setting.default})" in text
    assert "--config FILE" in text
    assert "examples:" in text


def test_version(capsys):
    """--version says the version and nothing else."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"spantail {__version__}\n"


def test_run_hands_the_config_to_the_command(program):
    """What the command line says arrives as one Config."""
    words = ["--home", "/a", "--home", "/b*", "--once", "--since", "all", "--agent", "other", "--poll", "1s"]
    assert cli.main(["run", *words]) == 0
    (config,) = program
    assert config.homes == ("/a", "/b*")
    assert config.once
    assert config.since is None
    assert config.agents == ("other",)
    assert config.poll == 10**9


def test_a_bad_value_is_one_line_and_exit_2(program, capsys):
    """Nothing starts, and the user reads one line."""
    assert cli.main(["run", "--idle", "soon"]) == 2
    assert cli.main(["run", "--agent", "nobody"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "spantail: --idle: 'soon' is no duration; write it like 250ms, 2s, 30m, 24h or 7d",
        "spantail: --agent: 'nobody' is not known; known are other, some-agent",
    ]
    assert program == []


def test_the_config_file_is_read(program, tmp_path, capsys):
    """--config names a file that is used; a file that is not there is an error."""
    path = tmp_path / "c.toml"
    path.write_text('grace = "7s"\n')
    assert cli.main(["run", "--config", str(path)]) == 0
    assert program[0].grace == 7 * 10**9
    assert cli.main(["run", "--config", str(tmp_path / "none")]) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[budget]]\nname='a'\nperiod='day'\n", "[[budget]] 1: limit: is missing"),
        (
            "[[budget]]\nname='a'\nperiod='year'\nlimit=1\n",
            "[[budget]] 1: period: 'year' is none of day, week, month",
        ),
        (
            "[[budget]]\nname='a'\nperiod='day'\nlimt=1\n",
            "[[budget]] 1: unknown key 'limt'; did you mean 'limit'?",
        ),
        ("budgets = 1\n", "unknown key 'budgets'; did you mean 'budget'?"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(program, tmp_path, capsys, text, says):
    """A budget that would never hold is not found out at the end of the month."""
    path = tmp_path / "c.toml"
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    assert cli.main(["run", "--config", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"spantail: {path}: {says}"]
    assert program == []


@pytest.mark.parametrize(
    "words", [[], ["fly"], ["run", "--sinc", "1d"], ["run", "stray"], ["formats", "--json", "--markdown"]]
)
def test_unknown_words_are_usage_errors(words, capsys):
    """Half-written flags are not guessed."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_starting_imports_nothing_heavy():
    """--help and a refused flag answer at once: exporters and prices are imported when needed."""
    code = (
        "import sys, spantail.cli; spantail.cli.parser();"
        "heavy = {'opentelemetry', 'genai_prices', 'grpc', 'pydantic', 'watchfiles', 'sqlite3', 'requests'};"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["run", "demo"])
def test_a_signal_during_the_start_ends_it_quietly(command, number):
    """Ctrl-C right after Enter: no traceback, and no other status than a moment later."""
    code = (
        "import os, sys, spantail.cli as cli;"
        f"cli._{command} = lambda _args: os.kill(os.getpid(), {int(number)});"
        f"sys.exit(cli.main(['{command}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_it_starts_without_descriptors(closed, tmp_path):
    """As some supervisors start a program; no file of ours gets their numbers."""
    code = (
        "import os, sys\n"
        f"for number in {closed}: os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'spantail', *sys.argv[1:]])"
    )
    flags = ("run", "--once", "--home", str(tmp_path), "--state", str(tmp_path / "state"))
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def told(shape, *rows):
    out = io.StringIO()
    assert formats.main(shape, rows, out) == 0
    return out.getvalue()


def test_formats_as_text():
    """A block per agent; an empty word is a dash."""
    text = told("text", row(versions=""), row("other"))
    assert text.startswith(
        "some-agent\n  where its files are  ~/.some/x ($SOME_HOME/x)\n  storage              lines\n"
    )
    assert "  versions             -\n" in text
    assert "\n\nother\n" in text


def test_formats_as_markdown():
    """A table of ten columns in which no word can break a cell."""
    lines = told("markdown", row(), row("other")).splitlines()
    assert lines[0].startswith("| agent | where its files are | storage | versions | tokens | tool times |")
    assert lines[1] == "|" + "---|" * 10
    assert r"yes \| no" in lines[2]
    assert "| `~/.some/x` (`$SOME_HOME/x`) |" in lines[2]
    assert len(lines) == 4


def test_formats_as_json():
    """The same cells for a program."""
    (made,) = json.loads(told("json", row()))
    assert made["agent"] == "some-agent"
    assert made["exit"] == "yes"
    assert made["storage"] == "lines"


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (Root(".a/b"), "~/.a/b"),
        (Root(".local/share/a/b", xdg="XDG_DATA_HOME"), "~/.local/share/a/b ($XDG_DATA_HOME/a/b)"),
        (Root(".config/a", xdg="XDG_CONFIG_HOME"), "~/.config/a ($XDG_CONFIG_HOME/a)"),
        (Root(".a", "A_HOME"), "~/.a ($A_HOME)"),
    ],
)
def test_a_place_is_written_as_a_user_writes_it(root, words):
    """The default folder, and the variable that moves it."""
    assert formats.place(root) == words


def test_formats_command_uses_the_table(program, capsys):
    """The command shows the rows of the table."""
    assert cli.main(["formats", "--json"]) == 0
    assert [cell["agent"] for cell in json.loads(capsys.readouterr().out)] == ["some-agent", "other"]
