"""A compressed file, read as if it were plain.

The illusion kept for the line tail: the bytes are plain, every offset can be gone to, and the file's own
number, size and times are still those of the file on disk. Compressed files are written once and are seldom
read, so going back simply begins again at the front; nothing is written to disk and one window is kept.
"""

from __future__ import annotations

import errno
from io import SEEK_CUR, SEEK_SET, BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ENDING: Final = ".zst"
_WINDOW: Final = 1 << 27
"""The largest window a file may ask for (128 MiB, the library's own limit): it is memory we would spend."""
_STEP: Final = 1 << 18


class _Plain(RawIOBase):
    """The plain bytes of a file of zstd frames."""

    def __init__(self, file: BufferedReader) -> None:
        # Few homes have such files: who has none does not pay for the library.
        import zstandard

        self._file = file
        self._refused = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._begin()

    def _begin(self) -> None:
        self._file.seek(0)
        self._reader = self._decompressor.stream_reader(self._file, read_across_frames=True, closefd=False)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            taken = self._reader.readinto(buffer)
        except self._refused as error:
            raise OSError(errno.EIO, "not what its ending says") from error
        self._at += taken
        return taken

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        if whence not in (SEEK_SET, SEEK_CUR):
            raise OSError(errno.EINVAL, "its plain length is not known")
        target = offset if whence == SEEK_SET else self._at + offset
        if target < self._at:
            self._begin()
        skipped = bytearray(_STEP)
        while self._at < target:
            if not self.readinto(memoryview(skipped)[: min(_STEP, target - self._at)]):
                break
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def plain(file: BufferedReader, path: str, buffer: int) -> BufferedReader:
    """The file itself, or its plain bytes if its name says that it is compressed."""
    return BufferedReader(_Plain(file), buffer) if path.endswith(ENDING) else file
