"""A trace backend that costs next to nothing, in a process of its own: it counts spans and answers 200.

For measuring us and not the receiver: requests are read from a bare socket, spans are counted by
stepping over the protobuf's lengths, and nothing is decoded, except the start time and the first
attribute values that `latency.py` asks for (`--times`).

    with CountingReceiver() as receiver:
        environ.update(receiver.environ())
        ...
        receiver.spans()          # so far
        receiver.arrivals()       # with times=True: [(tool call id, arrival in ns)]
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import threading
import time
from typing import Self

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
CALL_ID = re.compile(rb"gen_ai\.tool\.call\.id\x12.\n.([\x20-\x7e]{1,60})")
LENGTH_DELIMITED = 2


class CountingReceiver:
    """The other end: starts the process, asks it, ends it."""

    def __init__(self, *, times: bool = False) -> None:
        self._times = times

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, *(["--times"] if self._times else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._said())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def environ(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    def spans(self) -> int:
        return int(self._ask("spans"))

    def requests(self) -> int:
        return int(self._ask("requests"))

    def arrivals(self) -> list[tuple[str, int]]:
        """Tool call ids and when they arrived; each is given once."""
        lines = [self._said() for _ in range(int(self._ask("arrivals")))]
        return [(key, int(at)) for key, at in (line.split("\t") for line in lines)]

    def _ask(self, word: str) -> str:
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> str:
        return self._process.stdout.readline().rstrip("\n")


# ------------------------------------------------------------------------- the process itself


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def count_spans(body: bytes) -> int:
    """ExportTraceServiceRequest.resource_spans (1) -> scope_spans (2) -> spans (2)."""
    return sum(
        1
        for group in _parts(body, 0, len(body), 1)
        for scope in _parts(body, *group, 2)
        for _ in _parts(body, *scope, 2)
    )


def _parts(body: bytes, at: int, end: int, number: int) -> list[tuple[int, int]]:
    """Where the length-delimited fields of that number begin and end."""
    found = []
    while at < end:
        tag, at = _varint(body, at)
        if tag & 7 != LENGTH_DELIMITED:
            raise ValueError("a field that OTLP does not have here")
        length, at = _varint(body, at)
        if tag >> 3 == number:
            found.append((at, at + length))
        at += length
    return found


class _Counted:
    def __init__(self, *, times: bool) -> None:
        self.times = times
        self.requests = 0
        self._counted = 0
        self._bodies: list[bytes] = []
        """Counted when somebody asks: while they come, the machine is left to who is measured."""
        self.arrivals: list[tuple[bytes, int]] = []

    @property
    def spans(self) -> int:
        bodies, self._bodies = self._bodies, []
        self._counted += sum(map(count_spans, bodies))
        return self._counted

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._exchange, args=(connection,), daemon=True).start()

    def _exchange(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb", buffering=1 << 18)
        while True:
            length = 0
            while (line := stream.readline()) not in (b"\r\n", b""):
                if line[:15].lower() == b"content-length:":
                    length = int(line[15:])
            if not line:
                return
            body = stream.read(length)
            at = time.time_ns()
            connection.sendall(ANSWER)
            self.requests += 1
            self._bodies.append(body)
            if self.times:
                self.arrivals += [(key, at) for key in CALL_ID.findall(body)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", action="store_true", help="keep the arrival of every tool call")
    counted = _Counted(times=parser.parse_args().times)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=counted.serve, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        if line.strip() == "arrivals":
            arrivals, counted.arrivals = counted.arrivals, []
            print(len(arrivals))
            for key, at in arrivals:
                print(f"{key.decode()}\t{at}")
        else:
            print(getattr(counted, line.strip()))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
