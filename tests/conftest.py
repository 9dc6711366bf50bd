"""What all tests share: a clean environment, the fixtures, a real receiver."""

import os

import pytest

from receiver import Receiver

# Fixtures that start real servers; a test that takes one of them has the marker `servers`.
pytest_plugins = (
    "servers.jaeger",
    "servers.prometheus",
    "servers.alertmanager",
    "servers.collector",
    "servers.docker",
)


@pytest.fixture(autouse=True)
def no_outside_environment(monkeypatch):
    """What the developer's shell says about OpenTelemetry, proxies, agents or us is no part of a test."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "SPANTAIL_", "XDG_")) or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)


@pytest.fixture(params=["http", "grpc"])
def receiver(request):
    """A receiver of each protocol."""
    with Receiver(request.param) as receiver:
        yield receiver


@pytest.fixture
def http_receiver():
    with Receiver("http") as receiver:
        yield receiver


@pytest.fixture
def grpc_receiver():
    with Receiver("grpc") as receiver:
        yield receiver
