"""Which files there are to follow: homes and the table's globs -> sources.

The illusion kept for the loop: one flat list of sources, each file in it once, with its agent, kind and user.
Nothing is opened to find them, no folder is listed in which no pattern can fit, and no symbolic link is
followed out of the home or the agent's folder. The loop asks in three ways: `scan` for everything (at start
and in the periodic pass), `scan_dir` for a folder that is new, `match` for a path that changed.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from spantail.formats.row import Beside, Format
from spantail.tail import backlog, roots, search
from spantail.tail.globs import States
from spantail.tail.roots import Barred, Place, parts, within
from spantail.tail.source import Source

_REMEMBERED: Final = 10_000
"""Paths known to be none of ours; forgotten all at once when there are more."""


class Notices(Protocol):
    def unreadable(self, agent: str, path: str, reason: str) -> None: ...


class Finder:
    def __init__(
        self,
        formats: Sequence[Format],
        homes: Sequence[str],
        *,
        own_home: bool,
        environ: Mapping[str, str],
        excludes: Sequence[str] = (),
        agents: Sequence[str] = (),
        extra: Mapping[str, Sequence[str]] | None = None,
        notices: Notices | None = None,
        walks: search.Search | None = None,
    ) -> None:
        """`own_home`: the one home is the user's, so the environment's overrides apply. `agents`: only
        these; none = all. `extra`: further folders of an agent, beside those in the homes, or single files
        to be joined with its own. `walks`: the means by which homes are searched."""
        self._formats = [row for row in formats if not agents or row.agent in agents]
        self._homes = homes
        self._own_home = own_home
        self._environ = environ
        self._excludes = [os.path.abspath(os.path.expanduser(path)) for path in excludes]  # noqa: PTH100, PTH111
        self._extra = {
            agent: [os.path.abspath(os.path.expanduser(path)) for path in paths]  # noqa: PTH100, PTH111
            for agent, paths in (extra or {}).items()
        }
        self._search = walks or search.Search()
        self._company: dict[str, set[str]] = {}
        """Folder -> the files found by a search that are in it, or that are joined with some in it."""
        self._notices = notices
        self._complained: set[str] = set()
        self._known: dict[str, Source] = {}
        self._files: dict[tuple[int, int], str] = {}
        self._foreign: set[str] = set()
        self.folders: set[str] = set()
        """The folders in which a file to follow may be or appear, as of the last scan."""
        self.refresh()

    def refresh(self) -> None:
        """Looks again which homes and folders there are; part of `roots` and `scan`."""
        self._places, rules = roots.places(
            self._formats,
            roots.homes(self._homes),
            self._environ,
            own_home=self._own_home,
            extra=self._extra,
        )
        self._excluded = Barred([("/", path) for path in self._excludes])
        self._barred = Barred([*rules, *(("/", path) for path in self._excludes)])
        self._foreign.clear()
        self._at: dict[str, list[Place]] = {}
        for place in self._places:
            self._at.setdefault(place.path, []).append(place)

    def roots(self) -> tuple[list[str], list[str]]:
        """(folders that exist, folders that do not); one inside another is left out, since watching is
        recursive. Of a home that is searched, only the folders in which something was found."""
        self.refresh()
        existing = {place.path for place in self._places if place.real and not place.search}
        missing = {place.path for place in self._places if not place.real}
        outer = {path for path in existing if not any(within(path, p) for p in existing if p != path)}
        flat = {folder for folder in self._company if not any(within(folder, path) for path in outer)}
        return sorted(outer | flat), sorted(missing)

    def scan(self) -> list[Source]:
        """Every file there is, by path."""
        self.refresh()
        for place in self._places:
            if not place.real and (closed := _closed(place.path)):
                # Else a wrong uid would look like an agent that was never there.
                self._complain(place, closed, "Permission denied; agents' folders are for their owner alone")
        self.folders = set()
        found = [
            hit
            for place in self._places
            if place.real
            for hit in (
                self._searched(place) if place.search else self._walk(place, place.path, place.globs.start)
            )
        ]
        before, self._known, self._files = self._known, {}, {}
        self._company = {}
        sources = self._unique(found)
        for at, source in enumerate(sources):
            old = before.get(source.path)
            if old is not None and (old.files, old.home, old.user) == (
                source.files,
                source.home,
                source.user,
            ):
                sources[at] = self._known[source.path] = old
        return sources

    def scan_dir(self, path: str) -> list[Source]:
        """The files in a folder and below it: folders are made and filled faster than they are watched."""
        path = path.rstrip("/") or "/"
        found: list[tuple[str, tuple[int, int], Source]] = []
        for place in self._places:
            if not place.real or place.search:
                continue
            if within(place.path, path):
                found += self._walk(place, place.path, place.globs.start)
            elif within(path, place.path) and not self._barred.covers(path) and place.allows(path):
                states = place.globs.inside(parts(path, place.path))
                if states:
                    found += self._walk(place, path, states)
        return self._unique(found)

    def match(self, path: str) -> Source | None:
        """The source at a path that changed, if it is one; quick for those known."""
        source = self._known.get(path)
        if source is not None or path in self._foreign:
            return source
        fit = self._fit(path)
        if fit is None:
            # A database changes in its log first.
            if path.endswith("-wal") and (owner := self.match(path[:-4])) and owner.files.storage == "rows":
                return owner
            if len(self._foreign) >= _REMEMBERED:
                self._foreign.clear()
            self._foreign.add(path)
            return None
        place, index = fit
        key = self._regular(place, path)
        if key is None:
            return None
        twin = self._files.get(key)
        if twin is not None and twin != path and _is(twin, key):
            return self._known.get(twin)
        if twin is not None:
            self._known.pop(twin, None)
        return self._add(path, key, self._source(place, index, path))

    def changed(self, paths: Iterable[str]) -> list[Source]:
        """The sources behind the paths that a waker reported: files, and what is in new folders; companions
        first."""
        found: dict[str, Source] = {}
        for path in paths:
            source = self.match(path)
            found.update((joined.path, joined) for joined in self._joined(path))
            if source is not None:
                found[source.path] = source
            elif self.may_hold(path) and os.path.isdir(path):  # noqa: PTH112
                found.update((source.path, source) for source in self.scan_dir(path))
        return sorted(found.values(), key=lambda source: (not source.files.companion, source.path))

    def may_hold(self, path: str) -> bool:
        """Whether a file to follow may be or appear in this folder or below it."""
        if path in self.folders or any(not place.search for place in self._at.get(path, ())):
            return True
        for place in self._above(path):
            if (
                not place.search
                and place.globs.inside(parts(path, place.path))
                and not self._barred.covers(path)
            ):
                return not os.path.islink(path) or place.allows(path)  # noqa: PTH114
        return False

    def owners(self) -> list[Source]:
        """One source of each agent in each home, whether or not there is such a file."""
        return [self._source(place, 0, place.path) for place in self._places if place.files]

    def beside(self, source: Source) -> list[tuple[Beside, str]]:
        """The files that are read together with this one, as its root says, in that order."""
        wanted = source.format.roots[source.files.root].beside
        extra = self._extra.get(source.format.agent, [])
        found: dict[str, Beside] = {}
        for one in wanted:
            folders = [os.path.dirname(source.path)]  # noqa: PTH120
            folders += [source.home, *extra] if one.wide else []
            for folder in folders:
                for path in _named(folder, one.glob):
                    if not self._barred.covers(path):
                        found.setdefault(path, one)
        return [(one, path) for path, one in found.items()]

    def looked_at(self) -> Iterator[str]:
        """What polling has to look at: the files known, databases' logs, and folders for new files."""
        for path, source in list(self._known.items()):
            yield path
            if source.files.storage == "rows":
                yield path + "-wal"
        yield from list(self.folders)

    def backlog(self, sources: Sequence[Source]) -> list[list[Source]]:
        """The units of a first reading, in the order of their first records."""
        return backlog.units(sources)

    def in_wake(self, sources: Iterable[Source]) -> list[Source]:
        """The order in which what changed since the last look is read."""
        return backlog.in_wake(sources)

    # ------------------------------------------------------------------------------------ walking

    def _walk(
        self, place: Place, folder: str, states: States
    ) -> Iterator[tuple[str, tuple[int, int], Source]]:
        linked: set[str] = set()
        todo = [(folder, states)]
        while todo:
            folder, states = todo.pop()
            self.folders.add(folder)
            try:
                with os.scandir(folder) as entries:
                    names = [(e.name, e.path, e.is_symlink(), _is_folder(e)) for e in entries]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._complain(place, folder, error.strerror or "cannot be listed")
                continue
            for name, path, link, is_folder in names:
                if is_folder:
                    below = place.globs.enter(states, name)
                    if not below or self._barred.covers(path):
                        continue
                    if link:
                        # A link to a folder above, or two to each other, would be walked for ever.
                        real = os.path.realpath(path)
                        above = within(os.path.realpath(folder), real)
                        if above or real in linked or not place.allows(path):
                            continue
                        linked.add(real)
                    todo.append((path, below))
                    continue
                index = place.globs.fits(states, name)
                if index is None or self._barred.covers(path):
                    continue
                key = self._regular(place, path, link=link)
                if key is not None:
                    yield path, key, self._source(place, index, path)

    def _searched(self, place: Place) -> Iterator[tuple[str, tuple[int, int], Source]]:
        globs = place.globs
        wanted = frozenset(files.glob for files in place.files).__contains__
        for path in self._search.files(place.path, place.search, wanted, self._excluded.covers):
            index = globs.fits(globs.start, path[path.rindex("/") + 1 :])
            if index is None or self._barred.covers(path):
                continue
            key = self._regular(place, path)
            if key is not None:
                yield path, key, self._source(place, index, path)

    def _unique(self, found: list[tuple[str, tuple[int, int], Source]]) -> list[Source]:
        """Two names of one file are one source: the first by name, and the first place in the table."""
        found.sort(key=lambda hit: hit[0])
        sources: dict[str, Source] = {}
        for path, key, source in found:
            twin = self._files.get(key)
            if twin is not None and twin != path and _is(twin, key):
                path = twin  # noqa: PLW2901
            known = self._known.get(path)
            sources[path] = known if known is not None else self._add(path, key, source)
        return list(sources.values())

    def _add(self, path: str, key: tuple[int, int], source: Source) -> Source:
        self._known[path] = source
        self._files[key] = path
        root = source.format.roots[source.files.root]
        if root.search:
            folders = {path.rpartition("/")[0]}
            if any(one.wide for one in root.beside):
                extra = self._extra.get(source.format.agent, ())
                named = (one if os.path.isdir(one) else os.path.dirname(one) for one in extra)  # noqa: PTH112, PTH120
                folders |= {source.home, *named}
            for folder in folders:
                self._company.setdefault(folder or "/", set()).add(path)
        return source

    def _joined(self, path: str) -> Iterator[Source]:
        """The sources that are read together with this file."""
        folder, _, name = path.rpartition("/")
        for main in self._company.get(folder or "/", ()):
            source = self._known.get(main)
            if source is None or main == path:
                continue
            near = main.rpartition("/")[0] == folder
            named = path in self._extra.get(source.format.agent, ())
            wanted = source.format.roots[source.files.root].beside
            if any(
                (named and one.wide) or ((near or one.wide) and fnmatchcase(name, one.glob)) for one in wanted
            ):
                yield source

    def _regular(self, place: Place, path: str, *, link: bool | None = None) -> tuple[int, int] | None:
        """Device and inode, if it is a regular file that may be opened."""
        try:
            path.encode()
            if link is not False and not place.allows(path):
                return None
            stat = os.stat(path)  # noqa: PTH116 one per file and scan
        except UnicodeEncodeError:
            self._complain(place, os.fsencode(path).decode("utf-8", "replace"), "its name is not UTF-8")
            return None
        except OSError:
            return None
        return (stat.st_dev, stat.st_ino) if modes.S_ISREG(stat.st_mode) else None

    # ------------------------------------------------------------------------------------ matching

    def _above(self, path: str) -> Iterator[Place]:
        """The places that a path lies in."""
        end = len(path)
        while (end := path.rfind("/", 0, end)) > 0:
            for place in self._at.get(path[:end], ()):
                if place.real:
                    yield place

    def _fit(self, path: str) -> tuple[Place, int] | None:
        for place in self._above(path):
            names = parts(path, place.path)
            if place.search:
                near = search.lies(names, place.search)
                index = place.globs.fits(place.globs.start, names[-1]) if near else None
            else:
                index = place.globs.match(names)
            if index is not None and not self._barred.covers(path):
                if place.search:
                    self._search.add(place.path, path)
                return place, index
        return None

    def _source(self, place: Place, index: int, path: str) -> Source:
        return Source(path, place.format, place.files[index], place.home.path, place.home.user)

    def _complain(self, place: Place, path: str, reason: str) -> None:
        if self._notices is not None and path not in self._complained:
            self._complained.add(path)
            self._notices.unreadable(place.format.agent, path, reason)


def _named(folder: str, pattern: str) -> list[str]:
    """The files in a folder whose names fit; of something that is a file itself: that one. No links."""
    try:
        if not os.path.isdir(folder):  # noqa: PTH112
            return [folder] if os.path.isfile(folder) else []  # noqa: PTH113
        with os.scandir(folder) as entries:
            return sorted(
                e.path for e in entries if fnmatchcase(e.name, pattern) and e.is_file(follow_symlinks=False)
            )
    except OSError:
        return []


def _closed(path: str) -> str:
    """The folder on the way to the path that may not be entered, if that is why it is not to be seen."""
    try:
        os.stat(path)  # noqa: PTH116
    except PermissionError:
        above = os.path.dirname(path)  # noqa: PTH120
        return _closed(above) or above
    except OSError:
        pass
    return ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is(path: str, key: tuple[int, int]) -> bool:
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) == key
