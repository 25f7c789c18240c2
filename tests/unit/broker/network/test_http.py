"""The metrics port without a socket: fixed paths, two methods, one answer each; strange requests get a status, never a fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from logbus_broker.network.http import (
    EXCHANGES_MAX,
    HEAD_BYTES_MAX,
    NAMES_OF_LOOPBACK,
    HttpAnswer,
    HttpEndpoint,
    HttpExchange,
    respond,
    text,
)

from tests.support.loop import ScriptedPoller
from tests.support.manual_clock import ManualClock
from tests.support.sockets import ScriptedListener, ScriptedSocket


def big() -> HttpAnswer:
    return HttpAnswer(status=200, content_type="text/plain", blocks=iter([b"a" * 1000, b"b" * 1000]))


ROUTES = {"/metrics": big, "/health": lambda: text(200, "ok\n")}


def response(head: bytes) -> tuple[int, dict[str, str], bytes]:
    raw = b"".join(respond(head, ROUTES))
    top, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ") for line in lines), body


def test_a_page_comes_in_chunks_and_a_1_0_client_gets_plain_bytes() -> None:
    status, headers, body = response(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, headers["Transfer-Encoding"], headers["Connection"]) == (200, "chunked", "close")
    assert body == b"3e8\r\n" + b"a" * 1000 + b"\r\n3e8\r\n" + b"b" * 1000 + b"\r\n0\r\n\r\n"
    assert response(b"GET /metrics?x=1 HTTP/1.0\n\n")[2] == b"a" * 1000 + b"b" * 1000


def test_head_has_no_body() -> None:
    assert response(b"HEAD /metrics HTTP/1.1\r\n\r\n")[2] == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1", 404), (b"GET /metrics/.. HTTP/1.1", 404), (b"GET /../../etc/passwd HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405), (b"\xff\xfe /metrics HTTP/1.1", 405), (b"DELETE /health HTTP/1.0", 405),
        (b"", 400), (b"GET", 400), (b"GET /metrics", 400), (b"GET /a b HTTP/1.1", 400), (b"GET /metrics SPDY/3", 400),
    ],
)  # fmt: skip
def test_strange_requests_get_a_status(head: bytes, status: int) -> None:
    assert response(head + b"\r\n\r\n")[0] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"Host: localhost", 200), (b"host:127.0.0.1:9404", 200), (b"HOST: [::1]:9404", 200), (b"Accept: */*", 200),
        (b"Host: rebound.example.net", 421), (b"Host: localhost.example.net:80", 421), (b"X: y\r\nHost: 10.0.0.1", 421),
    ],
)  # fmt: skip
def test_a_port_on_loopback_answers_to_no_name_that_a_website_could_have(host: bytes, status: int) -> None:
    head = b"GET /health HTTP/1.1\r\n" + host + b"\r\n\r\n"
    (first, *_) = respond(head, ROUTES, NAMES_OF_LOOPBACK)
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert response(head)[0] == 200


class Trickle:
    """A socket that takes one byte at a time."""

    def __init__(self, incoming: list[bytes]) -> None:
        self.incoming = incoming
        self.sent = bytearray()

    def recv(self, count: int) -> bytes:
        return self.incoming.pop(0) if self.incoming else b""

    def send(self, data: memoryview) -> int:
        self.sent += data[:1]
        return 1


def test_a_block_is_made_only_when_the_one_before_is_gone() -> None:
    made = 0

    def blocks() -> Iterator[bytes]:
        nonlocal made
        for _ in range(3):
            made += 1
            yield b"0123456789"

    routes = {"/": lambda: HttpAnswer(status=200, content_type="text/plain", blocks=blocks())}
    sock = Trickle([b"GET / HT", b"TP/1.0\r\n\r\n"])
    exchange = HttpExchange(sock, routes, 0.0)  # type: ignore[arg-type]
    while not sock.sent.endswith(b"\r\n\r\n"):
        assert exchange.step()
    assert made == 0
    assert exchange.step()
    assert made == 1
    while exchange.step():
        pass
    assert sock.sent.endswith(b"0123456789" * 3)


def test_a_head_without_end_is_given_up() -> None:
    exchange = HttpExchange(Trickle([b"x" * 4096] * 10), ROUTES, 0.0)  # type: ignore[arg-type]
    steps = 1
    while exchange.step():
        steps += 1
    assert steps * 4096 <= HEAD_BYTES_MAX
    assert not exchange.answering


def test_what_begins_with_no_method_is_given_up_at_once() -> None:
    assert not HttpExchange(Trickle([b"\x16\x03\x01"]), ROUTES, 0.0).step()  # type: ignore[arg-type]


def test_a_peer_that_leaves_before_it_asked_is_forgotten() -> None:
    assert not HttpExchange(Trickle([]), ROUTES, 0.0).step()  # type: ignore[arg-type]


def endpoint(clock: ManualClock) -> tuple[HttpEndpoint, ScriptedListener, ScriptedPoller]:
    listener, poller = ScriptedListener(), ScriptedPoller(clock)
    served = HttpEndpoint(listener, ROUTES, poller=poller, now=clock.monotonic)  # type: ignore[arg-type]
    return served, listener, poller


def let_in(listener: ScriptedListener, poller: ScriptedPoller, sock: ScriptedSocket) -> ScriptedSocket:
    listener.knocking.append((sock, "127.0.0.1"))
    poller.owners[listener.fileno()]()  # type: ignore[operator]
    return sock


def test_a_newcomer_gets_the_place_of_the_oldest_that_has_not_asked() -> None:
    clock = ManualClock()
    _, listener, poller = endpoint(clock)
    silent = [let_in(listener, poller, ScriptedSocket()) for _ in range(EXCHANGES_MAX)]
    assert let_in(listener, poller, ScriptedSocket()).closed, "they have not had a second"
    clock.advance_ms(1_000)
    assert not let_in(listener, poller, ScriptedSocket()).closed
    assert [sock.closed for sock in silent] == [True] + [False] * (EXCHANGES_MAX - 1)


def test_a_port_that_was_closed_is_swept_without_a_word() -> None:
    served, _, poller = endpoint(ManualClock())
    served.close()
    served.sweep(1.0)
    assert not poller.owners


def test_a_scraper_that_cannot_be_watched_is_closed_and_keeps_no_place() -> None:
    clock = ManualClock()
    served, listener, poller = endpoint(clock)
    poller.fails["register"] = OSError(28, "No space left on device")
    assert let_in(listener, poller, ScriptedSocket()).closed
    poller.fails.clear()
    sock = let_in(listener, poller, ScriptedSocket())
    sock.fails["close"] = OSError(5, "Input/output error")
    clock.advance_ms(20_000)
    served.sweep(clock.monotonic())
    assert sock.closed
    assert not poller.owners.keys() - {listener.fileno()}
