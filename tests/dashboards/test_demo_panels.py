"""What somebody sees who has started the demo: data on every panel, soon."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from asking import empty
from grafana import FILES, load

from ports import free_port
from servers.jaeger import Jaeger
from servers.server import clean_environ, eventually

pytestmark = pytest.mark.servers
JOB = "demo"
SCRAPE = 5
"""As in the stack that is shipped."""
WELL = {
    "Errors per minute A",
    "Late results per minute A",
    "Label values shown as other A",
    "Model calls that fail A",
}
"""What stays at `none` as long as nothing goes wrong."""


def test_the_demo_fills_every_panel(prometheus, jaeger_program, tmp_path):
    """Each query of each of the five dashboards, with all variables at All."""
    dashboards = [load(path) for path in FILES]
    port = free_port()
    address = f"127.0.0.1:{port}"
    with (
        Jaeger(jaeger_program, tmp_path / "jaeger") as jaeger,
        prometheus.job(JOB, address, scrape_interval=f"{SCRAPE}s", scrape_timeout=f"{SCRAPE}s"),
    ):
        demo = subprocess.Popen(
            [sys.executable, "-m", "spantail", "demo", "--seed", "1", "--listen", address],
            env={**clean_environ(), **jaeger.environ("grpc")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:

            def filled() -> bool:
                found = [
                    each
                    for dashboard in dashboards
                    for each in empty(prometheus, dashboard, {"job": JOB}, time.time(), SCRAPE)
                ]
                assert set(found) <= WELL, found
                return True

            eventually(filled, seconds=180, what="data on every panel")
        finally:
            demo.terminate()  # and not kill: it removes its folder
            demo.wait(60)
