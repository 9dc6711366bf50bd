"""What the table holds about an agent: everything outside `formats/` is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, structs

from spantail.model import Event, Record

Storage = Literal["lines", "document", "rows", "text"]

AT_REST: Final = "at rest"
"""Kind of the record (without a body) that ends what was read of files joined by `Root.beside`:
everything written so far has been read."""


class Reader(Protocol):
    """A msgspec.Struct whose fields are its memory, saved with the commit. One per source.

    A file that was cut or replaced is read from its beginning by a new reader; one that has a method `again()` says
    itself by which.
    """

    def read(self, record: Record) -> Iterable[Event]: ...


class Beside(Struct, frozen=True):
    """A file that only makes sense together with a main file: read before it, by its reader."""

    kind: str
    glob: str
    """Name of the file, in the folder of the main file."""
    storage: Literal["lines", "text"]
    line: type[Any] | None = None
    wide: bool = False
    """Looked for in the home and the further roots as well."""


class Root(Struct, frozen=True):
    """A folder in which an agent keeps files, below a home; or where `env` says."""

    path: str
    """Relative to the home, for example `.claude/projects`."""
    env: str = ""
    """Name of an environment variable that overrides the folder (only for the user's own home)."""
    below: str = ""
    """What comes after the value of `env`: `$CLAUDE_CONFIG_DIR` + `projects`."""
    named: bool = False
    """The value of `env` is the path of a file, which alone is followed then, whatever its name."""
    xdg: str = ""
    """Name of an XDG variable (`XDG_DATA_HOME`) that replaces the first parts of `path`: with
    path `.local/share/x` and XDG_DATA_HOME=/d the folder is `/d/x`."""
    search: int = 0
    """The files may lie in any folder, down to this many levels below: they are looked for by name
    (their globs are plain names), rarely, and past hidden folders and dependency trees. Only folders
    that hold one are watched."""
    beside: tuple[Beside, ...] = ()
    """Files joined with each main file of this root (lines or text), in the order in which they are read."""


class Files(Struct, frozen=True):
    """One kind of file of an agent. The first Files whose glob fits a path decides its kind."""

    kind: str
    root: int
    """Which of the format's roots."""
    glob: str
    """Relative to the root, with `*` inside one path part and `**` for any number of parts."""
    storage: Storage
    reader: Callable[..., Reader]
    """Makes an empty reader (the Struct's type)."""
    memory: type[Any]
    """The Struct's type, to decode a stored reader."""
    line: type[Any] | None = None
    """For lines: the msgspec type that a line is decoded into."""
    companion: bool = False
    """Read before the main files of the same wake (meta.json, a hooks log)."""
    unit: Callable[[str, bytes], tuple[int, str]] | None = None
    """(path, first bytes of the file) -> (time of the first record in ns or 0, unit). Files of a
    unit belong to one session and are read together in a backlog: companions, main, then the
    others."""
    entries: Callable[[bytes], Any] | None = None
    """For documents: see tail/document."""
    queries: Callable[..., Any] | None = None
    """For rows: see tail/rows."""
    main: bool = True
    """False for a subagent's file: in a backlog it is read after the main file of its unit."""


class Gives(Struct, frozen=True):
    """What an agent's files can and cannot give, in a few words each; shown by `formats`."""

    tokens: str
    tool_times: str
    errors: str
    cost: str
    exit: str
    subagents: str


class Format(Struct, frozen=True):
    """One row of the table."""

    agent: str
    title: str
    roots: tuple[Root, ...]
    files: tuple[Files, ...]
    gives: Gives
    provider: str = ""
    """gen_ai.provider.name where no record says it."""
    never: tuple[str, ...] = ()
    """Globs (relative to the home) of files that are never opened: they may hold secrets."""
    versions: str = ""
    """The versions it was recorded with."""
    roots_setting: str = ""
    """Name of the setting that adds folders like the first root."""
    reader_setting: str = ""
    """Name of the setting that new readers are told, as `setting`."""
    demo: str = ""
    """Name of the module that writes made-up sessions (see actor), if there is one; imported when asked for."""
    shape: int = 1
    """Raised when the readers' memory changes its meaning."""

    def told(self, setting: object) -> Format:
        """The row with readers that know what the user has set."""
        files = (structs.replace(f, reader=partial(f.reader, setting=setting)) for f in self.files)
        return structs.replace(self, files=tuple(files))
