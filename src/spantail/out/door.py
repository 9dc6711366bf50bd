"""Who may see the page: TLS and passwords, in the words of Prometheus' web configuration.

For whoever lets others than this machine scrape: `[web]` in the config file has the keys that Prometheus and its
exporters have in theirs, with the same meaning, and the same bcrypt hashes, so that what is known there is known here.
A certificate that is renewed is taken up with the next connection; one that cannot be read then is said and the old
one stays. A password is compared in the same time whether the user exists or not, one at a time, and one that was
right is remembered (as a digest), since bcrypt is slow on purpose. Neither is ever in a log line.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import ssl
import threading
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

_HASH: Final = re.compile(r"\$2[aby]\$(?:0[4-9]|1[0-9]|2[0-9]|3[01])\$[./A-Za-z0-9]{53}")
_NOBODY: Final = "$2b$10$jV12BZw.ItkfGAlvvAyODuqNZCZZVXiurCbjywj/pQVI1rpvkmANa"
"""What the password of an unknown user is compared with, so that asking takes as long as for a known one."""
_REMEMBERED: Final = 100

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]


class TlsServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[web.tls_server_config]`"""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: ClientAuth | None = None
    """Without it: required if there is a client_ca_file, as its presence says."""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def verify(self) -> ssl.VerifyMode:
        if self.client_auth_type is None:
            return ssl.CERT_REQUIRED if self.client_ca_file else ssl.CERT_NONE
        return {
            "NoClientCert": ssl.CERT_NONE,
            "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
            "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
        }[self.client_auth_type]


class Web(Struct, frozen=True, forbid_unknown_fields=True):
    """`[web]`"""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[str, str] = {}


def check(web: Web) -> None:
    """ValueError with the rest of a sentence; it never holds a hash."""
    for user, hashed in web.basic_auth_users.items():
        if not user or ":" in user:
            raise ValueError("basic_auth_users: a name must not be empty or have a colon in it")
        if not _HASH.fullmatch(hashed):
            raise ValueError(
                f"basic_auth_users: {user}: must be a bcrypt hash, as `htpasswd -nBC 10` makes it"
            )
    if web.basic_auth_users:
        try:
            import bcrypt  # noqa: F401
        except ImportError:
            raise ValueError("basic_auth_users: needs bcrypt: pip install 'spantail[auth]'") from None
    tls = web.tls_server_config
    if tls is None:
        return
    if tls.verify() != ssl.CERT_NONE and not tls.client_ca_file:
        raise ValueError(f"tls_server_config: client_auth_type {tls.client_auth_type} needs a client_ca_file")
    try:
        _context(tls)
    except (OSError, ValueError) as error:
        raise ValueError(f"tls_server_config: {reason(error)}") from None


def _context(tls: TlsServerConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    for path in filter(None, (tls.cert_file, tls.key_file, tls.client_ca_file)):
        os.stat(path)  # noqa: PTH116 - its error names the file, those of the library do not
    context.load_cert_chain(tls.cert_file, tls.key_file, password="")  # a prompt would hang
    if tls.client_ca_file:
        context.load_verify_locations(tls.client_ca_file)
    context.verify_mode = tls.verify()
    return context


def reason(error: Exception) -> str:
    """What the system says of a file, without what is in it."""
    if isinstance(error, ssl.SSLError):
        return f"the certificate or key cannot be used ({error.reason or 'not PEM'})"
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or type(error).__name__}"
    return type(error).__name__


class Door:
    """`failed` is told, once per change, when a renewed certificate cannot be used."""

    def __init__(self, web: Web, failed: Callable[[str], None] = lambda _reason: None) -> None:
        self._tls = web.tls_server_config
        self._users = web.basic_auth_users
        self._failed = failed
        self._seen = self._files()
        self._context = None if self._tls is None else _context(self._tls)
        self._key = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._one = threading.Lock()

    # ------------------------------------------------------------------------------------ TLS

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    def context(self) -> ssl.SSLContext | None:
        """For the next connection."""
        if self._tls is not None and (now := self._files()) != self._seen:
            self._seen = now
            try:
                self._context = _context(self._tls)
            except (OSError, ValueError) as error:
                self._failed(reason(error))
        return self._context

    def _files(self) -> list[tuple[int, int, int] | None]:
        tls = self._tls
        if tls is None:
            return []
        found: list[tuple[int, int, int] | None] = []
        for path in (tls.cert_file, tls.key_file, tls.client_ca_file):
            try:
                stat = os.stat(path)  # noqa: PTH116 - three per connection
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append(None)
        return found

    # ------------------------------------------------------------------------------ passwords

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this header may see the numbers."""
        if not self._users:
            return True
        given = _given(authorization)
        if given is None:
            return False
        user, password = given
        hashed = self._users.get(user)
        digest = hmac.digest(self._key, f"{user}:{hashed}:".encode() + password, "sha256")
        if any([hmac.compare_digest(digest, right) for right in tuple(self._right)]):  # noqa: C419 - all of them
            return True
        # One at a time: who guesses passwords must not have all cores.
        with self._one:
            matches = _matches(password, hashed or _NOBODY)
        if not matches or hashed is None:
            return False
        if len(self._right) >= _REMEMBERED:
            self._right.clear()
        self._right[digest] = None
        return True


def _given(authorization: str | None) -> tuple[str, bytes] | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _matches(password: bytes, hashed: str) -> bool:
    import bcrypt

    # More than 72 bytes bcrypt never looks at; newer versions of the library refuse them.
    if b"\0" in password or len(password) > 72:
        return False
    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:
        return False
