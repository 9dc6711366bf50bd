"""Ports of 127.0.0.1 for servers that may come and go.

A number that is only free now may be another test's a moment later, while a server of this one is away: then its
clients would speak to the other's. So a port is kept bound, and nobody else is given it; without a listener it refuses,
and who sets SO_REUSEADDR, as servers do, can listen there.
"""

from __future__ import annotations

import os
import socket
import weakref

_HELD: list[object] = []


class Port:
    """Held as long as this object lives."""

    def __init__(self) -> None:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self.number = int(held.getsockname()[1])
        weakref.finalize(self, os.close, held.detach())


def free_port() -> int:
    """Held until the tests end."""
    port = Port()
    _HELD.append(port)
    return port.number
