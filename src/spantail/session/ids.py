"""Ids made of the agent's own keys, so that whoever reads a record again makes the same id."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from zlib import crc32

_INT64 = Struct("<q")
_KINDS = {kind: blake2b(digest_size=8, person=kind.encode()) for kind in ("model", "tool", "turn", "run")}
"""Begun once per kind: to begin one costs more than to digest a key."""
_SPAN = blake2b(digest_size=8, person=b"span")


def trace_id(agent: str, turn: str) -> bytes:
    return blake2b(f"{agent}\n{turn}".encode("utf-8", "replace"), digest_size=16).digest()


def span_id(trace: bytes, key: str) -> bytes:
    made = _SPAN.copy()
    made.update(trace + key.encode("utf-8", "replace"))
    return made.digest()


def ledger_id(kind: str, key: str) -> int:
    """Eight bytes for the ledger; signed, since SQLite's integers are."""
    made = _KINDS[kind].copy()
    made.update(key.encode("utf-8", "replace"))
    id_: int = _INT64.unpack(made.digest())[0]
    return id_


@lru_cache(maxsize=256)
def _of_name(name: str) -> int:
    return crc32(name.encode("utf-8", "replace"))


def input_digest(name: str, body: memoryview) -> int:
    """Tells the last few inputs of a session apart, no more: a checksum and the length do."""
    return crc32(body, _of_name(name)) << 31 | len(body) & 0x7FFFFFFF
