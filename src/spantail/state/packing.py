"""Batches of spans as the outbox keeps them: small ones as they are, large ones compressed.

zstd at its first level: a fifth of the time that zlib takes, and smaller. The library is loaded with the first large
batch, which a live session seldom has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

Packed = tuple[int, int, int, bytes]
"""A request for the outbox: spans, how it is compressed, its size before that, its bytes."""

PLAIN: Final = 0
ZLIB: Final = 1
"""Not written any more."""
ZSTD: Final = 2
PACK_FROM: Final = 16 * 1024
"""Larger requests are stored compressed, to a tenth: measured cheaper than to write and read them."""


def packed(spans: int, body: bytes) -> Packed:
    if len(body) <= PACK_FROM:
        return spans, PLAIN, len(body), body
    return spans, ZSTD, len(body), _compress()(body)


def unpacked(how: int, body: bytes) -> bytes:
    """What damage has made unreadable is given as it is: the backend refuses it, and it is named and dropped."""
    if how == PLAIN:
        return body
    try:
        return _decompress(how)(body)
    except Exception:  # noqa: BLE001 each library has its own
        return body


@cache
def _compress() -> Callable[[bytes], bytes]:
    import zstandard

    return zstandard.ZstdCompressor(level=1).compress


@cache
def _decompress(how: int) -> Callable[[bytes], bytes]:
    if how == ZLIB:
        import zlib

        return zlib.decompress
    import zstandard

    return zstandard.ZstdDecompressor().decompress
