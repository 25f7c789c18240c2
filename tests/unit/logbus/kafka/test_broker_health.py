"""Health pages of brokers: where they are, and what is on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from logbus.status.cluster_checks import page_url, read_page


@pytest.mark.parametrize(
    ("listener", "broker_host", "url"),
    [
        ("", "b", None),
        ("HTTP://127.0.0.1:9404", "127.0.0.1", "http://127.0.0.1:9404/health"),
        ("http://127.0.0.1:9404", "localhost", "http://127.0.0.1:9404/health"),
        ("http://127.0.0.1:9404", "broker-1.example.org", None),  # this machine's loopback is another
        ("http://0.0.0.0:9404", "broker-1.example.org", "http://broker-1.example.org:9404/health"),
        ("http://[::]:9404", "::1", "http://[::1]:9404/health"),
        ("http://10.0.0.7:9404", "broker-1.example.org", "http://10.0.0.7:9404/health"),
    ],
)
def test_a_page_is_where_its_listener_is_seen_from_here(listener: str, broker_host: str, url: str | None) -> None:
    assert page_url(listener, broker_host) == url


@contextmanager
def served(status: int, text: str) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/health"
        thread.join()


@pytest.mark.parametrize(
    ("status", "text", "lines"), [(200, "ok\n", ()), (503, "a failed\nb failed\n", ("a failed", "b failed"))]
)
def test_what_is_wrong_is_read_whatever_the_status(status: int, text: str, lines: tuple[str, ...]) -> None:
    with served(status, text) as url:
        assert read_page(url) == lines


def test_a_page_that_does_not_answer_says_nothing() -> None:
    assert read_page("http://127.0.0.1:1/health") is None
