"""The exporter's HTTP port: /metrics for scrapers, /healthz for a supervisor, / for people.

Each request has a daemon thread; at most SCRAPES_MAX are served at once, the rest get a 503. As in other exporters there is no
authentication: it listens on loopback by default, otherwise use a network that you trust. /healthz reports only that the exporter
itself works, whatever the state of what it watches: restarting the exporter does not repair a broker that is down.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from logbus.errors import UserError

SCRAPES_MAX = 16  # a Prometheus pair and a few people; more means a mistake somewhere
CLIENT_SECONDS_MAX = 10.0  # a client that takes longer to send its request is disconnected
POLL_SECONDS = 0.1  # how soon a shutdown is noticed

TEXT = "text/plain; charset=utf-8"
HOME = b"logbus exporter\n\n/metrics  for Prometheus\n/healthz  what could be read at the last scrape\n"

Answer = tuple[HTTPStatus, str, bytes]


class MetricsServer(ThreadingHTTPServer):
    """Listens once constructed; `UserError` where the port is taken. `health` returns the text of /healthz."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Callable[[], str]) -> None:
        self.registry, self.health = registry, health
        self.slots = threading.BoundedSemaphore(SCRAPES_MAX)
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(cannot_listen(host, port, error)) from None

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/metrics"

    def run_until(self, stop: threading.Event) -> None:
        """Serves until the event is set."""
        serving = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), daemon=True)
        serving.start()
        stop.wait()
        self.shutdown()
        self.server_close()


def cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: end what listens there, or choose another one with --port"
    return f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: MetricsServer
    timeout = CLIENT_SECONDS_MAX
    server_version = "logbus-exporter"

    def do_GET(self) -> None:
        if not self.server.slots.acquire(blocking=False):
            self.answer((HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many scrapes at once\n"))
            return
        try:
            route = ROUTES.get(urlsplit(self.path).path)
            self.answer(route(self) if route else (HTTPStatus.NOT_FOUND, TEXT, b"nothing here; /metrics is for Prometheus\n"))
        finally:
            self.server.slots.release()

    def metrics(self) -> Answer:
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        return HTTPStatus.OK, content_type, encode(self.server.registry)

    def healthz(self) -> Answer:
        return HTTPStatus.OK, TEXT, f"ok\n{self.server.health()}".encode()

    def home(self) -> Answer:
        return HTTPStatus.OK, TEXT, HOME

    def answer(self, answer: Answer) -> None:
        status, content_type, body = answer
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: one line per scrape would fill the log."""


ROUTES: Mapping[str, Callable[[Handler], Answer]] = {"/metrics": Handler.metrics, "/healthz": Handler.healthz, "/": Handler.home}
