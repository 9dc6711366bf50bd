"""Files that may lie in any folder: searched for by name, rarely, and joined with those beside them."""

import os
from pathlib import Path

from spantail.formats.row import Beside, Files, Format, Gives, Root
from spantail.tail.finder import Finder
from spantail.tail.search import LONGEST, PAUSE, Search, walk

GIVES = Gives("", "", "", "", "", "")
DIARY = Format(
    "diary",
    "Diary",
    (
        Root(
            "",
            search=2,
            beside=(
                Beside("notes", ".notes", "text"),
                Beside("log", "*diary*.jsonl", "lines", line=dict, wide=True),
            ),
        ),
    ),
    (Files("diary", 0, ".diary.md", "text", dict, dict),),
    GIVES,
    never=("locked/.diary.md",),
)
ROBOT = Format(
    "robot", "Robot", (Root(".robot"),), (Files("main", 0, "**/*.jsonl", "lines", dict, dict),), GIVES
)


class Clock:
    """Seconds that a test sets; `cost` passes with every walk."""

    def __init__(self):
        self.now = 0.0
        self.cost = 0.0
        self.asked = 0

    def __call__(self):
        self.asked += 1
        self.now += self.cost / 2
        return self.now


def make(home, *paths):
    for path in paths:
        file = Path(home, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")


def finder(home, clock=None, **more):
    walks = Search(clock or Clock(), start=lambda job: job())
    return Finder([DIARY, ROBOT], [str(home)], own_home=False, environ={}, walks=walks, **more)


def names(sources, home):
    return sorted(os.path.relpath(source.path, home) for source in sources)


def test_a_search_is_bounded(tmp_path):
    """By its depth; and it goes into no hidden folder, no dependency tree and through no link."""
    make(
        tmp_path,
        ".diary.md",
        "a/.diary.md",
        "a/b/.diary.md",
        "a/b/c/.diary.md",
        ".hidden/.diary.md",
        "a/node_modules/.diary.md",
        "venv/.diary.md",
        "locked/.diary.md",
        "out/.diary.md",
    )
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    look = finder(tmp_path, excludes=[f"{tmp_path}/out"])
    assert names(look.scan(), tmp_path) == [".diary.md", "a/.diary.md", "a/b/.diary.md"]
    for path in ("a/b/c", ".hidden", "a/node_modules", "venv", "locked", "out"):
        assert look.match(f"{tmp_path}/{path}/.diary.md") is None


def test_an_excluded_folder_is_not_walked(tmp_path):
    """It may be a slow one."""
    make(tmp_path, "a/.diary.md", "b/c/.diary.md")
    seen = []

    def barred(path):
        seen.append(os.path.relpath(path, tmp_path))
        return path.endswith("/b")

    assert len(list(walk(str(tmp_path), 4, ".diary.md".__eq__, barred))) == 1
    assert "b/c" not in seen


def test_a_home_is_searched_rarely(tmp_path):
    """At the start, then after a pause that grows with what a walk costs; a changed path is known at once."""
    make(tmp_path, "a/.diary.md")
    clock = Clock()
    look = finder(tmp_path, clock)
    assert names(look.scan(), tmp_path) == ["a/.diary.md"]
    make(tmp_path, "b/.diary.md", "c/.diary.md")
    clock.now += PAUSE - 1
    assert names(look.scan(), tmp_path) == ["a/.diary.md"]
    assert look.match(f"{tmp_path}/c/.diary.md") is not None
    assert names(look.scan(), tmp_path) == ["a/.diary.md", "c/.diary.md"]
    clock.now += 2
    clock.cost = 0.2
    look.scan()  # begins a walk; its answer is the next one's
    assert names(look.scan(), tmp_path) == ["a/.diary.md", "b/.diary.md", "c/.diary.md"]
    clock.cost = 0
    make(tmp_path, "d/.diary.md")
    clock.now += 2 * PAUSE
    assert "d/.diary.md" not in names(look.scan(), tmp_path)
    clock.now += LONGEST
    look.scan()
    assert "d/.diary.md" in names(look.scan(), tmp_path)
    (tmp_path / "d/.diary.md").unlink()
    assert "d/.diary.md" not in names(look.scan(), tmp_path)


def test_only_folders_that_hold_something_are_watched(tmp_path):
    """And nothing below them: a home is large. Another agent's folders are watched as ever."""
    make(tmp_path, "a/b/.diary.md", "c/x", ".robot/1.jsonl")
    look = finder(tmp_path)
    assert look.roots()[0] == [f"{tmp_path}/.robot"]
    look.scan()
    assert look.roots()[0] == [str(tmp_path), f"{tmp_path}/.robot", f"{tmp_path}/a/b"]
    for folder in ("c", "a", "a/b/d", ".robot2"):
        assert not look.may_hold(f"{tmp_path}/{folder}")
    assert look.may_hold(f"{tmp_path}/.robot/sub")


def test_further_roots_are_searched_as_well(tmp_path):
    """Or name a file to be joined."""
    make(tmp_path, "home/x", "more/a/.diary.md", "logs/any.name")
    look = finder(tmp_path / "home", extra={"diary": [f"{tmp_path}/more", f"{tmp_path}/logs/any.name"]})
    (source,) = look.scan()
    assert source.path == f"{tmp_path}/more/a/.diary.md"
    assert [path for _, path in look.beside(source)] == [f"{tmp_path}/logs/any.name"]
    assert look.changed({f"{tmp_path}/logs/any.name"}) == [source]


def test_what_is_beside_a_file(tmp_path):
    """In its folder; in the home too, if it is of the whole home. A change of it is a change of the file."""
    make(
        tmp_path,
        "a/.diary.md",
        "a/.notes",
        "a/old-diary.jsonl",
        "b/.diary.md",
        ".notes",
        "my-diary-log.jsonl",
    )
    (tmp_path / "diary-link.jsonl").symlink_to("/etc/hostname")
    look = finder(tmp_path)
    a, b = look.scan()
    assert [(one.kind, os.path.relpath(path, tmp_path)) for one, path in look.beside(a)] == [
        ("notes", "a/.notes"),
        ("log", "a/old-diary.jsonl"),
        ("log", "my-diary-log.jsonl"),
    ]
    assert [os.path.relpath(path, tmp_path) for _, path in look.beside(b)] == ["my-diary-log.jsonl"]
    assert look.changed({f"{tmp_path}/my-diary-log.jsonl"}) == [a, b]
    assert look.changed({f"{tmp_path}/a/.notes"}) == [a]
    assert look.changed({f"{tmp_path}/.notes", f"{tmp_path}/a/other"}) == []
