"""Ids made of the agent's own keys, so that whoever reads a record again makes the same id."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

_INT64 = Struct("<q")
_KINDS = {kind: blake2b(digest_size=8, person=kind.encode()) for kind in ("model", "tool", "turn", "run")}
"""Begun once per kind: to begin one costs more than to digest a key."""


def trace_id(agent: str, turn: str) -> bytes:
    return blake2b(f"{agent}\n{turn}".encode("utf-8", "replace"), digest_size=16).digest()


def span_id(trace: bytes, key: str) -> bytes:
    return blake2b(key.encode("utf-8", "replace"), digest_size=8, key=trace).digest()


def ledger_id(kind: str, key: str) -> int:
    """Eight bytes for the ledger; signed, since SQLite's integers are."""
    made = _KINDS[kind].copy()
    made.update(key.encode("utf-8", "replace"))
    id_: int = _INT64.unpack(made.digest())[0]
    return id_


def input_digest(name: str, body: memoryview) -> int:
    return int.from_bytes(
        blake2b(body, digest_size=8, key=name.encode("utf-8", "replace")[:64]).digest(), "little"
    )
