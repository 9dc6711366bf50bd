from __future__ import annotations

import gzip
import http.client
import socket

import pytest

from spantail.model import SECOND
from spantail.out.page import ListenError, Page, accepts_gzip, wants_openmetrics
from spantail.out.server import CLIENTS, PATIENCE, SCRAPER, PageServer
from spantail.state.families import COMPACTIONS
from spantail.state.totals import Totals

HOLD = 90 * SECOND


class Running:
    """A page on a real port, with a clock and answers that the test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND
        self.ready = (True, "")
        self.alive = True
        self.totals = Totals(HOLD)
        self.page = Page(self.totals, clock=lambda: self.now)
        self.server = PageServer(
            "127.0.0.1", 0, self.page, ready=lambda: self.ready, alive=lambda: self.alive
        )
        self.server.start()

    def commit(self) -> None:
        self.totals.rows()
        self.totals.committed()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def scrape(self) -> str:
        return self.ask("/metrics", **{SCRAPER: "10"})[2].decode()


@pytest.fixture(scope="module")
def server():
    """One server for the module: closing it takes up to half a second."""
    running = Running()
    yield running
    running.server.close()


@pytest.fixture
def running(server):
    """With nothing counted, and open."""
    server.totals = Totals(HOLD)
    server.page._totals = server.totals
    server.page.open()
    server.ready, server.alive = (True, ""), True
    server.commit()
    return server


def test_metrics_and_readyz_wait_for_the_backlog_healthz_does_not():
    """A first start makes no false spike: there is no page before the backlog is committed."""
    running = Running()
    try:
        assert running.ask("/metrics")[0] == 503
        assert running.ask("/readyz")[::2] == (503, b"the backlog is being read\n")
        assert running.ask("/healthz")[::2] == (200, b"ok\n")
        running.page.open()
        assert running.ask("/metrics")[0] == 200
        assert running.ask("/readyz")[::2] == (200, b"ready\n")
    finally:
        running.server.close()


def test_a_scraper_is_held_and_a_person_is_not(running):
    """The header that Prometheus sends makes the difference."""
    running.totals.add(COMPACTIONS, ("a", "p"), 3, running.now)
    running.commit()
    line = 'coding_agent_compactions_total{agent="a",project="p"} '
    assert line + "3\n" in running.ask("/metrics")[2].decode()
    assert line + "0\n" in running.scrape()
    running.commit()
    running.now += HOLD
    assert line + "3\n" in running.scrape()


def test_a_head_request_begins_no_hold(running):
    """It shows nobody a 0, so the 0 is still to be shown."""
    running.totals.add(COMPACTIONS, ("a", "p"), 3, running.now)
    running.commit()
    status, headers, body = running.ask("/metrics", "HEAD", **{SCRAPER: "10"})
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100
    running.commit()
    running.now += HOLD
    assert 'project="p"} 0\n' in running.scrape()


def test_the_format_is_what_the_client_asks_for(running):
    """Text by default, OpenMetrics for a Prometheus."""
    assert running.ask("/metrics")[1]["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    _, headers, body = running.ask("/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")


def test_the_page_is_compressed_for_who_can_read_it(running):
    """The same page, in fewer bytes."""
    plain = running.ask("/metrics")[2]
    _, headers, body = running.ask("/metrics", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    # What the process itself uses changes from one look to the next.
    unpacked = gzip.decompress(body)
    assert unpacked.partition(b"# HELP process_")[0] == plain.partition(b"# HELP process_")[0]
    assert len(body) < len(unpacked)


def test_readyz_gives_the_reason(running):
    """For the person who looks why it is not ready."""
    running.ready = (False, "commits fail: the disk is full")
    assert running.ask("/readyz")[::2] == (503, b"commits fail: the disk is full\n")
    assert running.ask("/metrics")[0] == 200, "the page goes on to show the last commit"


def test_healthz_fails_when_the_loop_does_not_tick(running):
    """So that what started the process can start it again."""
    running.alive = False
    assert running.ask("/healthz")[0] == 503


def test_the_root_links_to_the_pages_and_anything_else_is_not_found(running):
    """A query after the path changes nothing."""
    status, _, body = running.ask("/")
    assert status == 200
    assert all(f'href="{path}"'.encode() in body for path in ("/metrics", "/healthz", "/readyz"))
    assert running.ask("/metrics?x=1")[0] == 200
    assert running.ask("/metrics/")[0] == 404
    assert running.ask("/etc/passwd")[0] == 404
    assert running.ask("/metrics", "POST")[0] == 405


def test_clients_that_say_nothing_keep_nobody_out(running):
    """More idle connections than there may be: those that came first are closed, a scrape is answered."""
    address = ("127.0.0.1", running.server.port)
    # Less patient than the server, so that it is not the server's own patience that ends them.
    idle = [socket.create_connection(address, timeout=PATIENCE / 2) for _ in range(CLIENTS + 20)]
    try:
        assert running.scrape().startswith("# HELP")
        assert all(connection.recv(1) == b"" for connection in idle[:20])
    finally:
        for connection in idle:
            connection.close()


def test_clients_that_are_served_make_room(running):
    """One that takes its time is not sent away because many others came and went."""
    with socket.create_connection(("127.0.0.1", running.server.port), timeout=PATIENCE / 2) as slow:
        slow.sendall(b"GET /healthz HTTP/1.0\r\n")
        for _ in range(CLIENTS + 1):
            assert running.ask("/healthz")[0] == 200
        slow.sendall(b"\r\n")
        assert slow.recv(12) == b"HTTP/1.0 200"


def test_a_client_that_goes_away_disturbs_nothing(running, capsys):
    """No traceback, and the next is served."""
    for said in (b"", b"GET /met", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", running.server.port)) as connection:
            connection.sendall(said)
    assert running.ask("/healthz")[0] == 200
    assert capsys.readouterr() == ("", "")


def test_a_taken_port_names_the_flag(running):
    """An agent's own exporter may have it; the message says what to do, and names no agent."""
    with pytest.raises(ListenError, match=r"127\.0\.0\.1:\d+.*taken.*--listen ADDR:PORT"):
        PageServer("127.0.0.1", running.server.port, running.page, ready=lambda: (True, ""))


def test_an_address_that_is_not_ours_names_the_flag(running):
    """203.0.113.0/24 is for documentation: nobody has it."""
    with pytest.raises(ListenError, match="--listen"):
        PageServer("203.0.113.1", 0, running.page, ready=lambda: (True, ""))


def test_a_server_that_never_started_can_be_closed(running):
    """The port is free again."""
    server = PageServer("127.0.0.1", 0, running.page, ready=lambda: (True, ""))
    port = server.port
    server.close()
    PageServer("127.0.0.1", port, running.page, ready=lambda: (True, "")).close()


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
    "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("text/html,*/*;q=0.8", False),
        ("", False),
    ],
)
def test_which_format_an_accept_header_asks_for(accept, openmetrics):
    """OpenMetrics only to who names it, in the version that we write, and prefers it."""
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
    ],
)
def test_who_accepts_gzip(header, accepted):
    """A quality of 0 is a no."""
    assert accepts_gzip(header) is accepted


def test_the_page_tells_what_the_process_itself_uses():
    """Memory and CPU by the Prometheus client, in both formats, and OpenMetrics still ends with its mark."""
    page = Page(Totals())
    page.open()
    text, _ = page.render(None, scraper=False)
    assert b"process_resident_memory_bytes" in text
    openmetrics, _ = page.render("application/openmetrics-text; version=1.0.0", scraper=False)
    assert b"process_cpu_seconds_total" in openmetrics
    assert openmetrics.count(b"# EOF") == 1
    assert openmetrics.endswith(b"# EOF\n")
