"""TLS and passwords for the page, over real sockets with real certificates."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import socket
import ssl
from pathlib import Path

import bcrypt
import pytest
import trustme

from spantail.config import ConfigError, resolve
from spantail.out.door import Door, TlsServerConfig, Web
from spantail.out.page import Page
from spantail.out.server import CLIENTS, HEAD_BYTES, LIFETIME, PageServer
from spantail.state.totals import Totals

PASSWORD = "hunter2 ünd mehr"
HASH = bcrypt.hashpw(PASSWORD.encode(), b"$2b$04$abcdefghijklmnopqrstuu").decode()


class Served:
    """A page behind a door."""

    def __init__(self, web: Web, said: list[str] | None = None, ready=(True, "")) -> None:
        self.door = Door(web, (said if said is not None else []).append)
        self.now = 0.0
        page = Page(Totals())
        page.open()
        self.server = PageServer(
            "127.0.0.1", 0, page, ready=lambda: ready, door=self.door, clock=lambda: self.now
        )
        self.server.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def ask(self, path: str = "/metrics", method: str = "GET", context=None, body=None, **headers: str):
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.server.port, timeout=20, context=context
            )
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def raw(self, said: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as client:
            client.sendall(said)
            got = b""
            while more := client.recv(65536):
                got += more
            return got


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Pki:
    """An authority, the server's files, and what a client needs."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.cert, self.key, self.client_ca = folder / "cert.pem", folder / "key.pem", folder / "clients.pem"
        self.issue()
        self.ca.cert_pem.write_to_path(str(self.client_ca))

    def issue(self) -> str:
        """A new certificate in the same files; its serial number."""
        cert = self.ca.issue_cert("127.0.0.1")
        new = self.cert.with_suffix(".new")
        cert.cert_chain_pems[0].write_to_path(str(new))
        cert.private_key_pem.write_to_path(str(self.key))
        new.replace(self.cert)
        return ssl._ssl._test_decode_cert(str(self.cert))["serialNumber"]

    def tls(self, **more) -> TlsServerConfig:
        return TlsServerConfig(str(self.cert), str(self.key), **more)

    def client(self, *, certificate: bool = False, authority: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if certificate:
            (authority or self.ca).issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path)


# -------------------------------------------------------------------------------------- passwords


def test_the_numbers_need_a_password_and_the_probes_do_not():
    """Who runs the probes has no password; they tell no numbers."""
    with Served(Web(basic_auth_users={"prometheus": HASH})) as served:
        for path in ("/metrics", "/", "/nothing"):
            status, headers, body = served.ask(path)
            assert (status, headers["WWW-Authenticate"].partition(" ")[0]) == (401, "Basic")
            assert b"# HELP" not in body
        assert served.ask("/healthz")[0] == served.ask("/readyz")[0] == 200
        assert served.ask(Authorization=basic("prometheus", PASSWORD))[0] == 200
        assert served.ask(method="HEAD")[0] == 401


@pytest.mark.parametrize(
    "header",
    [
        basic("prometheus", "wrong"),
        basic("prometheus", ""),
        basic("nobody", PASSWORD),
        basic("", PASSWORD),
        basic("prometheus", PASSWORD + "x" * 100),
        basic("prometheus", PASSWORD + "\0"),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"prometheus").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Bearer " + PASSWORD.encode("ascii", "ignore").decode(),
        "Basic " + HASH,
    ],
)
def test_what_is_no_right_password_is_refused(header, capsys):
    """Wrong, absent, not base64, not UTF-8, longer than bcrypt looks, the hash itself; and none of it is logged."""
    with Served(Web(basic_auth_users={"prometheus": HASH})) as served:
        assert served.ask(Authorization=header)[0] == 401
        assert served.ask(Authorization=basic("prometheus", PASSWORD))[0] == 200, (
            "the right one still is right"
        )
        assert served.ask(Authorization=header)[0] == 401, "and is not remembered for others"
    assert capsys.readouterr() == ("", "")


def test_a_right_password_is_hashed_once(monkeypatch):
    """A scrape every few seconds must not cost a bcrypt each; a wrong one, and an unknown user, always do."""
    hashed = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *given: hashed.append(given) or real(*given))
    door = Door(Web(basic_auth_users={"a": HASH}))
    assert [door.admits(basic("a", PASSWORD)) for _ in range(5)] == [True] * 5
    assert len(hashed) == 1
    for user in ("a", "unknown"):
        hashed.clear()
        assert not door.admits(basic(user, "wrong"))
        assert len(hashed) == 1, "the time tells nobody who exists"


def test_why_it_is_not_ready_is_for_those_with_a_password():
    """The reason may name folders."""
    ready = (False, "the state cannot be written: /var/lib/x")
    with Served(Web(basic_auth_users={"a": HASH}), ready=ready) as served:
        assert served.ask("/readyz")[::2] == (503, b"not ready\n")
        assert b"/var/lib/x" in served.ask("/readyz", Authorization=basic("a", PASSWORD))[2]


# -------------------------------------------------------------------------------------------- TLS


def test_the_page_over_tls(pki):
    """A client that trusts the authority sees it; one that speaks plain HTTP, or trusts nobody, does not."""
    with Served(Web(pki.tls(), {"a": HASH})) as served:
        assert served.ask(context=pki.client(), Authorization=basic("a", PASSWORD))[0] == 200
        assert served.ask(context=pki.client())[0] == 401
        with pytest.raises(ssl.SSLCertVerificationError):
            served.ask(context=ssl.create_default_context())
        with pytest.raises((http.client.HTTPException, OSError)):
            served.ask()
        assert served.ask(context=pki.client(), path="/healthz")[0] == 200, "and goes on"


def test_old_versions_of_tls_are_refused(pki):
    with Served(Web(pki.tls(min_version="TLS13"))) as served:
        old = pki.client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.ask(context=old)
        assert served.ask(context=pki.client())[0] == 200


def test_clients_certificates(pki):
    """Required where there is an authority for them, unless it says otherwise; that of a stranger is refused."""
    with Served(Web(pki.tls(client_ca_file=str(pki.client_ca)))) as served:
        assert served.ask(context=pki.client(certificate=True))[0] == 200
        for bad in (pki.client(), pki.client(certificate=True, authority=trustme.CA())):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                served.ask(context=bad)
    given = pki.tls(client_ca_file=str(pki.client_ca), client_auth_type="VerifyClientCertIfGiven")
    with Served(Web(given)) as served:
        assert served.ask(context=pki.client())[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            served.ask(context=pki.client(certificate=True, authority=trustme.CA()))


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(pki):
    """With the next connection, without a restart; the old one stays while the new one is of no use."""
    said: list[str] = []

    def serial(served: Served) -> str:
        with (
            socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as plain,
            pki.client().wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            return client.getpeercert()["serialNumber"]

    with Served(Web(pki.tls()), said) as served:
        first = serial(served)
        second = pki.issue()
        assert serial(served) == second != first
        pki.cert.write_text("-----BEGIN CERTIFICATE-----\nSECRETSECRET\n-----END CERTIFICATE-----\n")
        assert serial(served) == serial(served) == second
        assert len(said) == 1
        assert "SECRET" not in said[0]
        third = pki.issue()
        assert serial(served) == third


def test_a_handshake_that_never_ends_holds_nobody_up(pki):
    """As many as there may be connect and say nothing, and a scrape is answered."""
    with Served(Web(pki.tls())) as served:
        idle = [socket.create_connection(("127.0.0.1", served.server.port)) for _ in range(CLIENTS + 5)]
        try:
            assert served.ask(context=pki.client())[0] == 200
        finally:
            for client in idle:
                client.close()


# ---------------------------------------------------------------------------- clients of all kinds


def test_one_byte_at_a_time_is_no_request():
    """A client that keeps to the patience of each step is closed when its time as a whole is up."""
    with Served(Web()) as served:
        with socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as drip:
            drip.sendall(b"GET /metrics HTTP/1.1\r\n")
            for letter in b"X-Slow: aaaaaaaaaa":
                drip.sendall(bytes([letter]))
            served.now += LIFETIME + 1
            assert drip.recv(1) == b""
        assert served.ask()[0] == 200


def test_a_head_of_many_megabytes_is_not_read():
    """Too long a line, too many headers, or too much of both."""
    with Served(Web()) as served:
        line = b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"
        assert served.raw(line).startswith(b"HTTP/1.0 414")
        many = b"".join(b"X-%d: y\r\n" % n for n in range(150))
        assert served.raw(b"GET / HTTP/1.1\r\n" + many + b"\r\n").startswith(b"HTTP/1.0 431")
        much = b"".join(b"X-%d: " % n + b"y" * 10_000 + b"\r\n" for n in range(HEAD_BYTES // 10_000 + 1))
        assert served.raw(b"GET / HTTP/1.1\r\n" + much + b"\r\n").startswith(b"HTTP/1.0 431")
        assert served.ask()[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_told_which_there_are(method):
    """The answer arrives although the body was not asked for."""
    with Served(Web()) as served:
        status, headers, _ = served.ask(method=method, body=b"x" * 5000)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert served.raw(b"POST / HTTP/1.0\r\nContent-Length: -5\r\n\r\n").startswith(b"HTTP/1.0 405")
        assert served.raw(b"POST / HTTP/1.0\r\nContent-Length: x\r\n\r\n").startswith(b"HTTP/1.0 405")
        assert served.raw(b"BREW / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 501")


def test_requests_sent_at_once_get_one_answer():
    """A connection is good for one request: the answer says so by its version, and the rest is not read as headers."""
    with Served(Web()) as served:
        got = served.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert got.startswith(b"HTTP/1.0 200")
        assert got.count(b"HTTP/1.0 ") == 1
        assert got.endswith(b"\r\n\r\nok\n")


# ------------------------------------------------------------------------------------- the config


def configured(tmp_path: Path, text: str):
    return resolve({"config": str(tmp_path / "c.toml")}, {"HOME": str(tmp_path)}, lambda _path: text.encode())


def test_the_config_file_has_the_keys_of_prometheus(tmp_path, pki):
    text = f"""
[web.tls_server_config]
cert_file = "{pki.cert}"
key_file = "{pki.key}"
client_ca_file = "{pki.client_ca}"
client_auth_type = "RequireAndVerifyClientCert"
min_version = "TLS13"

[web.basic_auth_users]
prometheus = "{HASH}"
"""
    web = configured(tmp_path, text).web
    assert web == Web(
        pki.tls(
            client_ca_file=str(pki.client_ca),
            client_auth_type="RequireAndVerifyClientCert",
            min_version="TLS13",
        ),
        {"prometheus": HASH},
    )
    assert configured(tmp_path, "").web is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[web.basic_auth_users]\na = "hunter2"', "[web]: basic_auth_users: a: must be a bcrypt hash"),
        ('[web.basic_auth_users]\n"a:b" = "x"', "a name must not be empty or have a colon"),
        ("[web]\ntls = 1", "unknown key 'tls'"),
        ('[web.tls_server_config]\ncert_file = "x"', "key_file"),
        ('[web.tls_server_config]\ncert_file = "/no/c"\nkey_file = "/no/k"', "/no/c: No such file"),
        ('[web.tls_server_config]\ncert_file = "KEY"\nkey_file = "KEY"', "cannot be used"),
        (
            '[web.tls_server_config]\ncert_file = "CERT"\nkey_file = "KEY"\nmin_version = "TLS10"',
            "min_version",
        ),
        (
            '[web.tls_server_config]\ncert_file="CERT"\nkey_file="KEY"\nclient_auth_type="RequireAndVerifyClientCert"',
            "needs a client_ca_file",
        ),
        (
            '[web.tls_server_config]\ncert_file = "CERT"\nkey_file = "KEY"\nclient_auth_type = "RequireAnyClientCert"',
            "client_auth_type",
        ),
    ],
)
def test_a_bad_setting_is_named_and_no_secret_is(tmp_path, pki, text, said):
    """One line, before anything is opened; neither a password nor a key stands in it."""
    text = text.replace("CERT", str(pki.cert)).replace("KEY", str(pki.key))
    with pytest.raises(ConfigError) as error:
        configured(tmp_path, text)
    line = str(error.value)
    assert said in line
    assert "\n" not in line
    assert "hunter2" not in line
    assert "PRIVATE" not in line


def test_a_key_with_a_passphrase_does_not_ask_for_it(tmp_path, pki):
    """A prompt would hold the start for ever."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pki.key.read_bytes(), None)
    pki.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="cannot be used"):
        configured(tmp_path, f'[web.tls_server_config]\ncert_file = "{pki.cert}"\nkey_file = "{pki.key}"')


def test_without_bcrypt_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bcrypt", None)
    with pytest.raises(ConfigError, match=r"pip install 'spantail\[auth\]'"):
        configured(tmp_path, f'[web.basic_auth_users]\na = "{HASH}"')


def test_a_missing_file_later_keeps_the_old_certificate(pki):
    said: list[str] = []
    with Served(Web(pki.tls()), said) as served:
        shutil.move(pki.cert, pki.cert.with_suffix(".away"))
        assert served.ask(context=pki.client())[0] == 200
        assert said == [f"{pki.cert}: {os.strerror(2)}"]
