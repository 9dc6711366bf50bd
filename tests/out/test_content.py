"""What spans say of tool calls: short, redacted, and never a reason to fail."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from spantail.out.content import TARGET_LENGTH, TEXT_LENGTH, Content

content = Content("target")


def target(name, value) -> str:
    return content.target(name, Raw(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("Bash", {"command": "make -j4", "description": "build it"}, "make -j4 # build it"),
        ("Bash", {"command": "make"}, "make"),
        ("bash", {"command": "a\nb"}, "a b"),
        ("run_shell_command", {"command": "exit 3", "description": "fail"}, "exit 3 # fail"),
        ("run_commands", {"commands": ["sleep 1; echo t", "ls"]}, "sleep 1; echo t; ls"),
        ("exec_command", {"cmd": "echo x", "yield_time_ms": 1}, "echo x"),
        ("shell", {"command": ["git", "status"]}, "git status"),
        ("developer__shell", {"command": "ls"}, "ls"),
        ("Read", {"file_path": "/a/b.py", "limit": 3}, "/a/b.py"),
        ("read", {"filePath": "/a"}, "/a"),
        ("read_files", {"files": [{"path": "/a"}, {"path": "/b"}]}, "/a /b"),
        ("mcp__fs__read_file", {"path": "/a"}, "/a"),
        ("Edit", {"file_path": "/a", "old_string": "x", "new_string": "y"}, "/a (edit)"),
        ("edit", {"path": "w.txt", "edits": [{"oldText": "z"}]}, "w.txt (edit)"),
        ("Write", {"file_path": "/a", "content": "grün"}, "/a (5 bytes)"),
        ("write", {"path": "w.txt", "content": ""}, "w.txt (0 bytes)"),
        ("write_file", {"path": "w.txt", "content": 7}, "w.txt"),
        ("Grep", {"pattern": "def .*", "path": "src"}, "/def .*/ in src"),
        ("search_text", {"pattern": "main"}, "/main/"),
        ("Glob", {"pattern": "**/*.py", "path": "src"}, "**/*.py"),
        ("list_directory", {"dir_path": "."}, "."),
        ("readFile", {"tool": "readFile", "path": "a.py", "content": "/h/a.py"}, "a.py"),
        ("editedExistingFile", {"tool": "editedExistingFile", "path": "a.py", "content": "x"}, "a.py (edit)"),
        ("newFileCreated", {"tool": "newFileCreated", "path": "a.py", "content": "x"}, "a.py (1 bytes)"),
        ("searchFiles", {"tool": "searchFiles", "path": "src", "regex": "def"}, "/def/ in src"),
        ("listFilesTopLevel", {"tool": "listFilesTopLevel", "path": "src", "content": "a\nb"}, "src"),
        ("Task", {"subagent_type": "explore", "description": "look", "prompt": "p"}, "[explore] look"),
        ("Agent", {"description": "look", "prompt": "long"}, "look"),
        ("spawn_agent", {"agent_type": "default", "message": "first line\nrest"}, "[default] first line"),
        ("subagent", {"agent": "worker", "task": "t"}, "[worker] t"),
        ("delegate", {"instructions": "look at a.py"}, "look at a.py"),
        ("unknown_tool", {"b": 1, "a": "secret content"}, "b, a"),
        ("TodoWrite", {"todos": []}, "todos"),
        ("Bash", {}, ""),
        ("Bash", {"command": 7.5}, "7.5"),
        ("Bash", {"command": None, "timeout": 1}, "command, timeout"),
        ("Bash", {"command": {"deep": 1}}, "command"),
        ("Read", [1, 2], ""),
        ("Read", None, ""),
        ("Read", 5, ""),
    ],
)
def test_summaries(name, value, says):
    """By the tool's kind, whichever agent's tool it is; of an unknown tool only the keys."""
    assert target(name, value) == says


def test_input_that_is_text():
    """Some agents store an input as JSON in a string, or as a command or patch."""
    assert target("exec_command", '{"cmd": "echo otel"}') == "echo otel"
    assert target("exec", "text(1)") == "text(1)"
    patch = "*** Begin Patch\n*** Add File: a.txt\n+secret line\n*** Update File: b.txt\n*** End Patch"
    assert target("apply_patch", patch) == "a.txt, b.txt (edit)"
    assert target("apply_patch", "no patch, some text") == ""
    assert target("unknown", "some text that is content") == ""


def test_nothing_to_say():
    """No input, no target."""
    assert content.target("Bash", None) == ""
    assert content.target("Bash", Raw()) == ""
    assert content.text(None) == ""


def test_targets_are_redacted_and_cut():
    """A secret is replaced before the cut, so that no half of it is left."""
    secret = "ghp_" + "aB3" * 12
    assert target("Bash", {"command": f"curl -H {secret} x"}) == "curl -H [redacted] x"
    long = target("Bash", {"command": "x " * 95 + secret + " y" * 500})
    assert len(long) == TARGET_LENGTH
    assert long.endswith("…")
    assert "ghp_" not in long
    assert target("unknown", {secret: 1}) == "[redacted]"


def test_a_secret_at_the_end_of_what_is_looked_at():
    """Long text is redacted only as far as it may be shown; half a secret there stays hidden."""
    for shift in range(40):
        filler = "-----BEGIN PRIVATE KEY----- -----END PRIVATE KEY----- " * 14 + "." * shift
        command = filler + " ghp_" + "aB3" * 12 + " tail" * 1000
        assert "ghp_" not in target("Bash", {"command": command})


def test_cut_at_a_character():
    """What is cut is still UTF-8, with an ellipsis."""
    words = target("Bash", {"command": "é🎉" * 1000})
    assert len(words) == TARGET_LENGTH
    assert words.encode()
    assert words.endswith("…")


def test_broken_text_is_still_text():
    """Lone surrogates, NaN, bad UTF-8: what agents really write."""
    assert content.target("Bash", Raw(b'{"command": "echo \\ud83d", "timeout": NaN}')) == "echo ?"
    assert content.target("Bash", Raw(b'{"command": "a\xff"}')) == "a\ufffd"
    assert content.target("Bash", Raw(b'{"command": "a"')) == ""
    assert content.text(Raw(b'"cut \\ud83d"')) == "cut ?"
    assert content.target("Bash", Raw(b"[" * 100_000)) == ""
    assert content.target("Bash", Raw(b'{"command": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")) in (
        "",
        "command",
    )


def test_text():
    """A string as its text, anything else as its JSON; redacted and cut."""
    assert content.text(Raw(b'"a\\nb \\u00e9"')) == "a\nb é"
    assert content.text(Raw(b'{"a": 1, "password": "x"}')) == '{"a": 1, "password": "[redacted]"}'
    assert content.text(Raw(b"[1, 2]")) == "[1, 2]"
    whole = content.text(Raw(json.dumps("x " * TEXT_LENGTH).encode()))
    assert len(whole) == TEXT_LENGTH
    assert whole.endswith("…")


def test_long_strings_are_cut_inside_an_escape():
    """Of megabytes only the beginning is decoded, wherever the cut falls."""
    for shift in range(12):
        body = b'"' + b"." * shift + b"\\u00e9" * 200_000 + b'"'
        words = content.text(Raw(body))
        assert words.startswith("." * shift + "ééé")
        assert len(words) == TEXT_LENGTH


def test_content_keeps_nothing_of_the_buffer():
    """A Raw is only good until its buffer is used again; a summary outlives it."""
    buffer = bytearray(b'{"x": {"command": "make"}}')
    raw = msgspec.json.decode(buffer, type=dict[str, Raw])["x"]
    words = content.target("Bash", raw)
    buffer[:] = b" " * len(buffer)
    assert words == "make"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["command", "path", "pattern", "task", "content", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["Bash", "Read", "Write", "Edit", "Grep", "Glob", "Task", "x", ""]), JSON)
def test_any_json_gives_a_short_line(name, value):
    """No input makes it fail, and the answer is one line of valid text."""
    words = target(name, value)
    assert len(words) <= TARGET_LENGTH
    assert "\n" not in words
    words.encode()
    content.text(Raw(json.dumps(value).encode())).encode()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(body):
    """Not even JSON is needed."""
    content.target("Bash", Raw(body)).encode()
    content.text(Raw(body)).encode()
