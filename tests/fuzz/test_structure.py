"""Records of any structure through each reader and the sessions, found and made small by hypothesis."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hostile_home import chosen, finder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutation import places

from spantail.formats import TABLE
from spantail.formats.row import Files
from spantail.model import Context, Record
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.json_lines import REFUSED, LineDecoder

KINDS = list(
    {
        (row.agent, files.reader): (row.agent, files)
        for row in TABLE
        for files in reversed(row.files)
        if files.storage == "lines"
    }.values()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=30)
    | st.sampled_from(
        ["2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "user", "assistant", "tool", "session", "error"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "role", "text", "content", "usage", "name", "message", ""]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@cache
def recorded(agent: str, files: Files) -> list[bytes]:
    """Lines of this kind of file, a few hundred of them."""
    lines: list[bytes] = []
    for case in chosen(agent):
        for source in finder(agent, case / "home").scan():
            if source.files == files and not source.path.endswith(".zst"):
                lines += [
                    line for line in Path(source.path).read_bytes().splitlines() if 2 < len(line) < 20_000
                ]
    return lines[:400]


@pytest.mark.parametrize(("agent", "files"), KINDS, ids=lambda value: getattr(value, "glob", value))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_structure_ends_a_reader(agent, files, data):
    """A few records, each with places replaced, removed or renamed; whatever the reader makes of them can be stored."""
    lines = recorded(agent, files) or [b'{"type":"user"}']
    decoder, reader = LineDecoder(files.line), files.reader()
    sessions = Sessions(Context(agent=agent), Rules(), Ledger(), lambda *_, **__: None, str, lambda _: None)
    for number in range(data.draw(st.integers(1, 5))):
        try:
            body = json.loads(data.draw(st.sampled_from(lines)))
        except ValueError:
            body = {}
        for _ in range(data.draw(st.integers(0, 3))):
            found = places(body)
            if not found:
                break
            holder, key = data.draw(st.sampled_from(found))
            if data.draw(st.booleans()):
                holder[key] = data.draw(VALUES)
            else:
                holder.pop(key)
        line = json.dumps(body).encode()
        try:
            bodies = [decoder.quick(line)]
        except REFUSED:
            bodies = [made for _, made in decoder.rescue(line)[0]]
        for made in bodies:
            sessions.apply(reader.read(Record(files.kind, "/home/x/a/b.jsonl", number, 0, made)))
    sessions.settle(1_893_456_000 * 10**9)
    sessions.take()
    for work in sessions.changed():
        msgspec.msgpack.encode(work)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=files.memory)
    assert again == reader
