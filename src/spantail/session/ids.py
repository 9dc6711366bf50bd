"""Ids made of the agent's own keys, so that whoever reads a record again makes the same id."""

from __future__ import annotations

from hashlib import blake2b


def trace_id(agent: str, turn: str) -> bytes:
    return blake2b(f"{agent}\n{turn}".encode("utf-8", "replace"), digest_size=16).digest()


def span_id(trace: bytes, key: str) -> bytes:
    return blake2b(key.encode("utf-8", "replace"), digest_size=8, key=trace).digest()


def ledger_id(kind: str, key: str) -> int:
    """Eight bytes for the ledger; signed, since SQLite's integers are."""
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8, person=kind.encode()).digest()
    return int.from_bytes(digest, "little", signed=True)


def input_digest(name: str, body: memoryview) -> int:
    return int.from_bytes(
        blake2b(body, digest_size=8, key=name.encode("utf-8", "replace")[:64]).digest(), "little"
    )
