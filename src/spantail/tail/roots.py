"""Where agents keep their files: homes and the table's roots -> folders on this machine.

The illusion kept for the finder: a list of places, each one folder of one agent in one home, whatever the
environment variables, XDG folders and quoted globs (`/home/*`) behind it say today.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from spantail.formats.row import Beside, Files, Format, Root
from spantail.tail.globs import Globs, States, compiled

_XDG_DEFAULTS: Final = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
}


class Home(Struct, frozen=True):
    path: str
    user: str
    """Its last part if homes are to be told apart, else empty."""


class Place(Struct, frozen=True, eq=False):
    """One folder of one agent in one home, and what is looked for in it."""

    path: str
    home: Home
    format: Format
    files: tuple[Files, ...]
    globs: Globs
    """Of `files`, in their order."""
    real: str
    """Without symbolic links; empty while the folder is missing or leads out of a home not one's own."""
    real_home: str
    search: int = 0
    beside: tuple[Beside, ...] = ()

    def allows(self, path: str) -> bool:
        """Whether a path that goes through symbolic links stays inside the folder or the home."""
        real = os.path.realpath(path)
        return within(real, self.real) or within(real, self.real_home)


class Barred:
    """Paths that are never opened: what the user excludes, and what a format says may hold secrets."""

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        below: dict[str, list[str]] = {}
        for base, pattern in rules:
            below.setdefault(base.rstrip("/") or "/", []).append(pattern)
        self._below = [(base, compiled(tuple(patterns), hidden=True)) for base, patterns in below.items()]
        self._folder = ""
        self._here: list[tuple[Globs, States]] | None = None
        """What may still fit in that folder; None: all of it is covered."""

    def covers(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        # Thousands of files of one folder are asked about in a row.
        if (folder or "/") != self._folder:
            self._folder = folder or "/"
            self._here = self._inside(self._folder)
        if self._here is None:
            return True
        return any(globs.fits(states, name) is not None for globs, states in self._here)

    def _inside(self, folder: str) -> list[tuple[Globs, States]] | None:
        here: list[tuple[Globs, States]] = []
        for base, globs in self._below:
            if within(folder, base):
                names = parts(folder, base)
                if globs.covers(names):
                    return None
                if states := globs.inside(names):
                    here.append((globs, states))
        return here


def within(path: str, folder: str) -> bool:
    return bool(folder) and (path == folder or path.startswith(folder if folder[-1] == "/" else folder + "/"))


def parts(path: str, folder: str) -> list[str]:
    """The parts of a path below a folder."""
    return [part for part in path[len(folder) :].split("/") if part]


def homes(patterns: Sequence[str]) -> list[Home]:
    """The homes there are now. A glob stands for several homes, even while it matches one: the label of a
    user must not change when the second one comes."""
    several = len(patterns) > 1 or any(glob.has_magic(pattern) for pattern in patterns)
    found: dict[str, Home] = {}
    for pattern in patterns:
        plain = os.path.abspath(os.path.expanduser(pattern))  # noqa: PTH100, PTH111 keeps symbolic links
        paths = [plain]
        if glob.has_magic(plain):
            paths = sorted(filter(os.path.isdir, glob.glob(plain)))  # noqa: PTH207
        for path in paths:
            found.setdefault(
                os.path.realpath(path),
                Home(path, os.path.basename(path) if several else ""),  # noqa: PTH119
            )
    return list(found.values())


def locate(root: Root, home: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """The folder of a root; and which first parts of its default path stand where instead, so that what is
    said about files there can follow (both empty for the default)."""
    if root.env and environ.get(root.env):
        given = os.path.expanduser(environ[root.env])  # noqa: PTH111
        if root.named:
            # A bare name lies where the file usually is.
            usually = locate(structs.replace(root, env=""), home, environ)[0]
            base = os.path.normpath(os.path.dirname(os.path.join(usually, given)))  # noqa: PTH118, PTH120
            return base, root.path, base
        base = os.path.abspath(given)  # noqa: PTH100
        usual = (
            root.path[: -len(root.below)].rstrip("/")
            if root.below and root.path.endswith(root.below)
            else root.path
        )
        return os.path.normpath(f"{base}/{root.below}"), usual, base
    moved = environ.get(root.xdg, "") if root.xdg else ""
    usual = _XDG_DEFAULTS.get(root.xdg, "")
    # The XDG specification has relative values ignored.
    if moved.startswith("/") and usual and within(root.path, usual):
        return os.path.normpath(moved + root.path[len(usual) :]), usual, os.path.normpath(moved)
    return os.path.normpath(f"{home}/{root.path}"), "", ""


def _wanted(root: Root, files: Files, environ: Mapping[str, str]) -> str:
    """What is looked for in the root's folder."""
    given = environ.get(root.env, "") if root.named else ""
    return glob.escape(os.path.basename(given)) if given else files.glob  # noqa: PTH119


def places(
    formats: Sequence[Format],
    found: Sequence[Home],
    environ: Mapping[str, str],
    *,
    own_home: bool,
    extra: Mapping[str, Sequence[str]],
) -> tuple[list[Place], list[tuple[str, str]]]:
    """Every place, existing or not, and the rules (folder, pattern) of what must not be opened there.

    `extra`: further folders of an agent, as its first root.
    """
    result: list[Place] = []
    rules: list[tuple[str, str]] = []
    for home in found:
        real_home = os.path.realpath(home.path)
        for format_ in formats:
            rules += [(home.path, pattern) for pattern in format_.never]
            folders: list[tuple[int, str, bool]] = []
            for index, root in enumerate(format_.roots):
                path, usual, base = locate(root, home.path, environ if own_home else {})
                folders.append((index, path, own_home))
                rules += [
                    (base, p[len(usual) + 1 :]) for p in format_.never if usual and p.startswith(usual + "/")
                ]
            if home is found[0]:
                folders += [(0, path, True) for path in extra.get(format_.agent, ())]
            looked: dict[str, set[str]] = {}
            for index, path, trusted in folders:
                kinds = tuple(files for files in format_.files if files.root == index)
                root = format_.roots[index]
                wanted = tuple(_wanted(root, files, environ if own_home else {}) for files in kinds)
                # A root that only its variable moves is elsewhere what another root is already.
                if looked.setdefault(path, set()) >= set(wanted) and not root.search:
                    continue
                looked[path].update(wanted)
                # Most folders are missing, and to resolve a path costs a stat for each of its parts.
                real = os.path.realpath(path) if os.path.isdir(path) else ""  # noqa: PTH112
                if not (trusted or within(real, real_home)):
                    real = ""
                globs = compiled(wanted)
                place = Place(path, home, format_, kinds, globs, real, real_home, root.search, root.beside)
                result.append(place)
    return result, rules
