# ruff: noqa: INP001 - a script of the image, not of a package
"""The image's health check: whether /healthz answers on the port of the page, with or without TLS ([web] in the config).

Where client certificates are required nobody can ask without one: give `--no-healthcheck`, or a check of your own.
"""

import http.client
import ssl
import sys

# Its own machine's certificate, asked for by address: there is nothing to verify.
UNVERIFIED = ssl._create_unverified_context()  # noqa: S323, SLF001


def answers(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


PORT = 9464
sys.exit(
    not answers(http.client.HTTPConnection("127.0.0.1", PORT, timeout=2))
    and not answers(http.client.HTTPSConnection("127.0.0.1", PORT, timeout=2, context=UNVERIFIED))
)
