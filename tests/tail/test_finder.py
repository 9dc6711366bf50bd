"""Which files are followed, and in which order a first reading takes them."""

import os
import tempfile
from pathlib import Path

import pytest

from spantail.formats.row import Files, Format, Gives, Root
from spantail.tail.finder import Finder
from spantail.tail.globs import Globs

GIVES = Gives("", "", "", "", "", "")


def files(kind, glob, storage="lines", root=0, **more):
    return Files(kind, root, glob, storage, dict, dict, **more)


def unit(path, head):
    """Time and unit as a format tells them: `time unit` in the file's first line."""
    time, name = head.split(b"\n")[0].split()
    return int(time), name.decode()


ROBOT = Format(
    "robot",
    "Robot",
    (Root(".robot/projects", env="ROBOT_HOME", below="projects"),),
    (
        files("meta", "*/*/meta.json", "document", companion=True, unit=unit),
        files("sub", "*/*/sub/**/*.jsonl", main=False, unit=unit),
        files("main", "*/*.jsonl", unit=unit),
    ),
    GIVES,
    never=(".robot/projects/*/secret*.jsonl", ".robot/projects/vault"),
)
BASE = Format(
    "base",
    "Base",
    (
        Root(".local/share/base", xdg="XDG_DATA_HOME"),
        Root(".base/logs"),
        Root(".local/share/base", env="BASE_DB", named=True, xdg="XDG_DATA_HOME"),
    ),
    (
        files("rows", "base.db", "rows"),
        files("log", "**/*.log", root=1),
        files("rows", "base.db", "rows", root=2),
    ),
    GIVES,
)


def make(home, *paths):
    for path in paths:
        file = Path(home, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")


def finder(*homes, own_home=False, environ=None, **more):
    return Finder(
        [ROBOT, BASE], [str(home) for home in homes], own_home=own_home, environ=environ or {}, **more
    )


def found(sources, home):
    return {os.path.relpath(source.path, home): source.files.kind for source in sources}


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a.json", "a.json", True),
        ("*.json", "a.json", True),
        ("*.json", "x/a.json", False),
        ("*/a", "x/a", True),
        ("*/a", "a", False),
        ("**/a", "a", True),
        ("**/a", "x/y/a", True),
        ("x/**/a", "x/a", True),
        ("x/**/a", "x/y/z/a", True),
        ("x/**/a", "y/a", False),
        ("**/x/**/a", "1/x/2/3/a", True),
        ("**/**/a", "a", True),
        ("x/**", "x/y/z", True),
        ("x/**", "x", False),
        ("x/**/*.j", "x/.hidden/a.j", False),
        ("*", ".hidden", False),
        (".*", ".hidden", True),
        ("s-[0-9]?.j", "s-1x.j", True),
        ("A", "a", False),
    ],
)
def test_patterns(pattern, path, fits):
    """`*` stays inside one part, `**` is any number of them including none, a dot is to be named."""
    assert (Globs([pattern]).match(path.split("/")) == 0) is fits


def test_the_first_pattern_that_fits_decides():
    """And the walk goes on below only where one can fit."""
    globs = Globs(["a/*.x", "**/*.y", "a/**"])
    assert globs.match(["a", "1.x"]) == 0
    assert globs.match(["a", "1.y"]) == 1
    assert globs.match(["a", "1.z"]) == 2
    assert globs.match(["b", "1.z"]) is None
    assert not Globs(["a/*/c"]).inside(["a", "b", "c"])


def test_scan_finds_every_kind(tmp_path):
    """Lines, documents and databases; other files are passed over."""
    make(
        tmp_path,
        ".robot/projects/p/1.jsonl",
        ".robot/projects/p/1/meta.json",
        ".robot/projects/p/1/sub/2.jsonl",
        ".robot/projects/p/1/sub/deep/er/3.jsonl",
        ".robot/projects/p/1/other/4.jsonl",
        ".robot/projects/5.jsonl",
        ".local/share/base/base.db",
        ".local/share/base/base.db-wal",
        ".base/logs/x/y.log",
    )
    sources = finder(tmp_path).scan()
    assert found(sources, tmp_path) == {
        ".base/logs/x/y.log": "log",
        ".local/share/base/base.db": "rows",
        ".robot/projects/p/1.jsonl": "main",
        ".robot/projects/p/1/meta.json": "meta",
        ".robot/projects/p/1/sub/2.jsonl": "sub",
        ".robot/projects/p/1/sub/deep/er/3.jsonl": "sub",
    }
    assert [s.path for s in sources] == sorted(s.path for s in sources)
    assert {s.user for s in sources} == {""}


def test_no_folder_is_listed_in_which_nothing_can_fit(tmp_path):
    """Work does not grow with what agents keep beside their sessions."""
    make(tmp_path, ".robot/projects/p/1/other/deep/4.txt", ".robot/projects/p/1/sub/2.jsonl", ".robot/x/y")
    look = finder(tmp_path)
    look.scan()
    projects = tmp_path / ".robot/projects"
    assert look.folders == {str(projects / path) for path in ("", "p", "p/1", "p/1/sub")}
    assert not look.may_hold(str(projects / "p/1/other"))
    assert look.may_hold(str(projects / "p/2"))


def test_what_must_not_be_opened_is_not_found(tmp_path):
    """Files that may hold secrets, and what the user excludes."""
    make(
        tmp_path,
        ".robot/projects/p/secrets.jsonl",
        ".robot/projects/vault/1.jsonl",
        ".robot/projects/q/1.jsonl",
        ".robot/projects/p/1.jsonl",
        ".base/logs/.x.log",
        ".base/logs/y.log",
    )
    look = finder(tmp_path, excludes=[f"{tmp_path}/.robot/projects/q", f"{tmp_path}/.base/logs/*"])
    assert found(look.scan(), tmp_path) == {".robot/projects/p/1.jsonl": "main"}
    for path in ("p/secrets.jsonl", "vault/1.jsonl", "q/1.jsonl"):
        assert look.match(f"{tmp_path}/.robot/projects/{path}") is None
    assert not look.may_hold(f"{tmp_path}/.robot/projects/vault")
    assert look.scan_dir(f"{tmp_path}/.robot/projects/vault") == []


def test_environment_overrides_apply_to_the_own_home_only(tmp_path):
    """And what must not be opened moves with the folder."""
    make(tmp_path, "moved/projects/p/1.jsonl", "moved/projects/p/secret.jsonl", "xdg/base/base.db")
    make(tmp_path, "home/.robot/projects/p/2.jsonl")
    environ = {"ROBOT_HOME": f"{tmp_path}/moved", "XDG_DATA_HOME": f"{tmp_path}/xdg"}
    own = finder(tmp_path / "home", own_home=True, environ=environ)
    assert found(own.scan(), tmp_path) == {"moved/projects/p/1.jsonl": "main", "xdg/base/base.db": "rows"}
    other = finder(tmp_path / "home", environ=environ)
    assert found(other.scan(), tmp_path) == {"home/.robot/projects/p/2.jsonl": "main"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("{}/elsewhere/my [work].sqlite", "elsewhere/my [work].sqlite"),
        ("~/.hidden", "home/.hidden"),
        ("other.db", "home/.local/share/base/other.db"),
        ("{}/home/.local/share/base/base.db", "home/.local/share/base/base.db"),
        (":memory:", None),
    ],
)
def test_a_variable_that_names_a_file_has_that_file_followed(tmp_path, monkeypatch, given, name):
    """Whatever it is called, and nothing beside it; a bare name is one in the usual folder."""
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    make(tmp_path, "elsewhere/base.db", "elsewhere/my [work].sqlite", "elsewhere/my w.sqlite")
    make(tmp_path, "home/.hidden", "home/.local/share/base/base.db", "home/.local/share/base/other.db")
    environ = {"BASE_DB": given.format(tmp_path)}
    usual = {"home/.local/share/base/base.db": "rows"}
    own = finder(tmp_path / "home", own_home=True, environ=environ)
    assert found(own.scan(), tmp_path) == usual | ({name: "rows"} if name else {})
    if name:
        assert own.match(f"{tmp_path}/{name}") is not None
    other = finder(tmp_path / "home", environ=environ)
    assert found(other.scan(), tmp_path) == usual


def test_only_the_agents_asked_for(tmp_path):
    """`--agent`."""
    make(tmp_path, ".robot/projects/p/1.jsonl", ".local/share/base/base.db")
    assert found(finder(tmp_path, agents=["base"]).scan(), tmp_path) == {".local/share/base/base.db": "rows"}


def test_further_folders_of_an_agent(tmp_path):
    """Beside those in the home, as its first root."""
    make(tmp_path, "home/.robot/projects/p/1.jsonl", "more/p/2.jsonl")
    look = finder(tmp_path / "home", extra={"robot": [f"{tmp_path}/more"]})
    assert found(look.scan(), tmp_path) == {
        "home/.robot/projects/p/1.jsonl": "main",
        "more/p/2.jsonl": "main",
    }


def test_homes_by_glob_are_looked_for_again(tmp_path):
    """A home that comes later is found, and labelled like the first, which kept its label."""
    make(tmp_path, "home/ann/.robot/projects/p/1.jsonl")
    look = finder(tmp_path / "home/*")
    assert [s.user for s in look.scan()] == ["ann"]
    make(tmp_path, "home/bob/.robot/projects/p/1.jsonl", "home/a file")
    assert [(s.user, s.group) for s in look.scan()] == [
        (user, f"robot\n{tmp_path}/home/{user}") for user in ("ann", "bob")
    ]


def test_several_homes_are_told_apart(tmp_path):
    """Two names of one home are one."""
    make(tmp_path, "ann/.robot/projects/p/1.jsonl", "bob/.robot/projects/p/1.jsonl")
    (tmp_path / "too").symlink_to(tmp_path / "ann")
    look = finder(tmp_path / "ann", tmp_path / "bob", tmp_path / "too")
    assert [s.user for s in look.scan()] == ["ann", "bob"]


def test_roots_there_and_missing(tmp_path):
    """A folder that appears later is reported then."""
    make(tmp_path, ".robot/projects/p/1.jsonl")
    look = finder(tmp_path)
    assert look.roots() == (
        [f"{tmp_path}/.robot/projects"],
        [f"{tmp_path}/.base/logs", f"{tmp_path}/.local/share/base"],
    )
    assert look.match(f"{tmp_path}/.base/logs/x.log") is None
    make(tmp_path, ".base/logs/x.log")
    assert f"{tmp_path}/.base/logs" in look.roots()[0]
    assert look.match(f"{tmp_path}/.base/logs/x.log") is not None


def test_links_that_lead_out_are_not_followed(tmp_path):
    """Links inside the home are; a link to itself or to a folder above does no harm."""
    make(tmp_path, "outside/1.jsonl", "home/kept/2.jsonl", "home/.robot/projects/p/3.jsonl")
    projects = tmp_path / "home/.robot/projects"
    (projects / "out").symlink_to(tmp_path / "outside")
    (projects / "in").symlink_to(tmp_path / "home/kept")
    (projects / "p/4.jsonl").symlink_to(tmp_path / "outside/1.jsonl")
    (projects / "p/5.jsonl").symlink_to("5.jsonl")
    (projects / "self").symlink_to("self")
    (tmp_path / "home/.base").mkdir()
    (tmp_path / "home/.base/logs").mkdir()
    (tmp_path / "home/.base/logs/up").symlink_to(tmp_path / "home/.base")
    make(tmp_path, "home/.base/logs/x.log")
    look = finder(tmp_path / "home")
    sources = look.scan()
    assert found(sources, tmp_path / "home") == {
        ".robot/projects/in/2.jsonl": "main",
        ".robot/projects/p/3.jsonl": "main",
        ".base/logs/x.log": "log",
    }
    assert look.match(str(projects / "out/1.jsonl")) is None
    assert look.match(str(projects / "p/4.jsonl")) is None
    assert not look.may_hold(str(projects / "out"))
    assert look.may_hold(str(projects / "in"))


def test_a_root_may_be_a_link_in_the_own_home_only(tmp_path):
    """One's own folder may lie elsewhere; in others' homes a link could point at anybody's files."""
    make(tmp_path, "data/projects/p/1.jsonl")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.robot").symlink_to(tmp_path / "data")
    assert len(finder(tmp_path / "home", own_home=True).scan()) == 1
    assert finder(tmp_path / "home").scan() == []


def test_only_regular_files(tmp_path):
    """A pipe or folder with a fitting name is none."""
    make(tmp_path, ".robot/projects/p/1.jsonl", ".robot/projects/p/2.jsonl/x")
    os.mkfifo(tmp_path / ".robot/projects/p/3.jsonl")
    assert found(finder(tmp_path).scan(), tmp_path) == {".robot/projects/p/1.jsonl": "main"}


def test_two_names_of_a_file_are_one_source(tmp_path):
    """The first by path, whichever way it is asked for."""
    make(tmp_path, ".robot/projects/p/b.jsonl")
    projects = tmp_path / ".robot/projects/p"
    look = finder(tmp_path)
    (source,) = look.scan()
    os.link(projects / "b.jsonl", projects / "c.jsonl")
    assert look.match(str(projects / "c.jsonl")) is source
    os.link(projects / "b.jsonl", projects / "a.jsonl")
    assert [s.path for s in look.scan()] == [str(projects / "a.jsonl")]


def test_a_source_stays_the_same_object(tmp_path):
    """Over scans and matches, so that the loop can rely on it."""
    make(tmp_path, ".robot/projects/p/1.jsonl")
    look = finder(tmp_path)
    (source,) = look.scan()
    assert look.scan() == [source]
    assert look.match(source.path) is source
    assert look.scan_dir(f"{tmp_path}/.robot/projects/p") == [source]


def test_match_of_a_new_file(tmp_path):
    """By its path alone, without a scan; a path that is none of ours is None."""
    look = finder(tmp_path)
    make(tmp_path, ".robot/projects/p/1.jsonl", ".robot/projects/p/1.txt", "1.jsonl")
    look.refresh()
    assert look.match(f"{tmp_path}/.robot/projects/p/1.jsonl").files.kind == "main"
    for path in (".robot/projects/p/1.txt", "1.jsonl", ".robot/projects/p", ".robot/projects/p/gone.jsonl"):
        assert look.match(f"{tmp_path}/{path}") is None
    make(tmp_path, ".robot/projects/p/gone.jsonl")
    assert look.match(f"{tmp_path}/.robot/projects/p/gone.jsonl") is not None


def test_match_of_a_renamed_file_is_a_new_source(tmp_path):
    """The old path is gone, so the new one is not a second name."""
    make(tmp_path, ".robot/projects/p/1.jsonl", ".robot/projects/q/x.txt")
    look = finder(tmp_path)
    look.scan()
    moved = tmp_path / ".robot/projects/q/1.jsonl"
    (tmp_path / ".robot/projects/p/1.jsonl").rename(moved)
    assert look.match(str(moved)).path == str(moved)


def test_a_database_changes_in_its_log(tmp_path):
    """The write-ahead log stands for its database, and polling looks at it."""
    make(tmp_path, ".local/share/base/base.db", ".base/logs/x.log-wal", ".base/logs/x.log")
    look = finder(tmp_path)
    look.scan()
    database = f"{tmp_path}/.local/share/base/base.db"
    assert look.match(database + "-wal").path == database
    assert look.match(f"{tmp_path}/.base/logs/x.log-wal") is None
    assert {database, database + "-wal", f"{tmp_path}/.base/logs"} <= set(look.looked_at())


def test_changed_paths_become_sources(tmp_path):
    """Files as they are, new folders by what is in them, each source once."""
    make(tmp_path, ".robot/projects/p/1.jsonl")
    look = finder(tmp_path)
    look.scan()
    make(tmp_path, ".robot/projects/q/2.jsonl", ".robot/projects/q/2/sub/3.jsonl", ".robot/other/4.jsonl")
    projects = f"{tmp_path}/.robot/projects"
    paths = {
        f"{projects}/q",
        f"{projects}/q/2.jsonl",
        f"{projects}/p/1.jsonl",
        f"{tmp_path}/.robot/other",
        "/gone",
    }
    assert found(look.changed(paths), projects) == {
        "p/1.jsonl": "main",
        "q/2.jsonl": "main",
        "q/2/sub/3.jsonl": "sub",
    }


def test_a_name_that_is_not_utf8_is_said_and_passed_over(tmp_path):
    """It could not be stored or logged; the others are found."""
    make(tmp_path, ".robot/projects/p/1.jsonl")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/.robot/projects/p/\xff.jsonl")).write_bytes(b"")

    heard = Heard()
    look = finder(tmp_path, notices=heard)
    assert len(look.scan()) == len(look.scan()) == 1
    assert [(agent, reason) for agent, _, reason in heard] == [("robot", "its name is not UTF-8")]


class Heard(list):
    def unreadable(self, agent, path, reason):
        self.append((agent, path, reason))


@pytest.fixture
def as_a_stranger():
    """Root may enter every folder, so the test is somebody else where it is root."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as home:  # tmp_path lies in a folder that is for its owner alone
        Path(home).chmod(0o755)
        yield Path(home), lambda: root and os.seteuid(65534)
        if root:
            os.seteuid(0)
        Path(home, ".robot").chmod(0o700)


def test_a_folder_that_may_not_be_entered_is_named(as_a_stranger):
    """Once: an agent's folder of another user must not look like one that is not there."""
    home, become_a_stranger = as_a_stranger
    make(home, ".robot/projects/p/1.jsonl")
    (home / ".robot").chmod(0)
    become_a_stranger()
    heard = Heard()
    look = finder(home, notices=heard)
    assert look.scan() == look.scan() == []
    assert [(agent, path) for agent, path, _ in heard] == [("robot", f"{home}/.robot")]


def write(home, path, text, mtime):
    make(home, path)
    Path(home, path).write_text(text)
    os.utime(Path(home, path), ns=(mtime, mtime))


def test_backlog_takes_units_by_their_first_record(tmp_path):
    """And inside a unit companions, main files, then the others by time."""
    root = ".robot/projects/p"
    write(tmp_path, f"{root}/late.jsonl", "30 late\n", 1)
    write(tmp_path, f"{root}/early.jsonl", "20 early\n", 9)
    write(tmp_path, f"{root}/early/meta.json", "0 early\n", 99)
    write(tmp_path, f"{root}/early/sub/b.jsonl", "10 early\n", 9)
    write(tmp_path, f"{root}/early/sub/a.jsonl", "15 early\n", 9)
    write(tmp_path, f"{root}/rubbish.jsonl", "?\n", 25)
    write(tmp_path, ".base/logs/x.log", "", 5)
    look = finder(tmp_path)
    units = look.backlog(look.scan())
    assert [[os.path.relpath(s.path, tmp_path).removeprefix(f"{root}/") for s in unit] for unit in units] == [
        [".base/logs/x.log"],
        ["early/meta.json", "early.jsonl", "early/sub/b.jsonl", "early/sub/a.jsonl"],
        ["rubbish.jsonl"],
        ["late.jsonl"],
    ]


def test_backlog_breaks_ties_by_mtime_then_path(tmp_path):
    """So that the order does not depend on the disk's."""
    for name, mtime in (("c", 1), ("b", 2), ("a", 2)):
        write(tmp_path, f".robot/projects/p/{name}.jsonl", f"7 {name}\n", mtime)
    look = finder(tmp_path)
    units = look.backlog(look.scan())
    assert [Path(s.path).stem for (s,) in units] == ["c", "a", "b"]


def test_backlog_keeps_units_of_two_homes_apart(tmp_path):
    """A session id is only unique in its group."""
    for home in ("ann", "bob"):
        write(tmp_path, f"{home}/.robot/projects/p/1.jsonl", "7 same\n", 1)
    look = finder(tmp_path / "*")
    assert [[s.user for s in unit] for unit in look.backlog(look.scan())] == [["ann"], ["bob"]]


def test_backlog_keeps_a_file_that_vanished(tmp_path):
    """Its tail will say so."""
    write(tmp_path, ".robot/projects/p/1.jsonl", "7 one\n", 1)
    look = finder(tmp_path)
    sources = look.scan()
    Path(sources[0].path).unlink()
    assert look.backlog(sources) == [sources]
