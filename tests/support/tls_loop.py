"""TLS on real sockets, in a loop whose turns the test decides."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from logbus_broker.api.handler import Parts, Pending
from logbus_broker.network.certificates import TlsListener
from logbus_broker.network.poller import READ
from logbus_broker.network.tls import HandshakeShare
from logbus_broker.properties import build_config
from logbus_broker.protocol.framing import Request

from benchmarks.peers.authority import Authority
from tests.support.loop import LISTENING, Loop


def tls_listener(settings: Mapping[str, str], name: str = "SSL") -> TlsListener:
    return TlsListener(name, build_config(settings), handshakes=HandshakeShare())


class LocalSocket(socket.socket):
    """One end of a pair, where what one end sends is at the other end at once; it has no options of TCP."""

    def setsockopt(self, *option: Any) -> None: ...


class TlsLoop(Loop):
    """The loop, with sockets that epoll would have been asked about. `listener` is the name of theirs in the settings."""

    def __init__(
        self, dispatch: Callable[[Request], Parts | Pending], settings: Mapping[str, str], listener: str = "SSL", **more: Any
    ) -> None:
        self.tls = tls_listener(settings, listener)
        super().__init__(dispatch, connect={"PLAINTEXT": self.tls.connection}, **more)

    def join(self) -> socket.socket:
        """A plain connection to the TLS port, accepted; returns the client's end."""
        near, far = socket.socketpair()
        self.listener.knocking.append((LocalSocket(fileno=far.detach()), "127.0.0.1"))  # type: ignore[arg-type]
        self.turn([(LISTENING, READ)])
        near.setblocking(False)
        return near

    def step(self) -> bool:
        """One turn with what epoll would report; False if the loop would sleep instead."""
        asked = select.poll()
        for descriptor, events in self.poller.asked.items():
            if descriptor > LISTENING:
                asked.register(descriptor, events)
        ready = asked.poll(0)
        if not ready and self.poller.timeout:
            return False
        self.clock.advance_ms(1)
        self.turn(ready)
        return True


class TlsClient:
    """A client that keeps what it saw on the wire (`seen`) and what it decrypted (`received`)."""

    def __init__(self, loop: TlsLoop, authority: Authority, certificate: Path | None = None) -> None:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        if certificate is not None:
            context.load_cert_chain(certificate)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.loop, self.sock = loop, loop.join()
        self.seen, self.received, self.is_shut = b"", b"", False
        self._unsent = b""

    def exchange(self) -> None:
        """Move bytes until neither side has anything to do."""
        while self._send() + self._receive() + self.loop.step():
            pass

    def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                before = len(self.seen)
                self.exchange()
                if self.is_shut or len(self.seen) == before:
                    raise ConnectionError("no answer") from None
        self.exchange()

    def hello(self) -> None:
        """The handshake's first flight."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._send()

    def ask(self, data: bytes) -> bytes:
        """What comes back at once."""
        self._tls.write(data)
        self.exchange()
        received, self.received = self.received, b""
        return received

    def encrypted(self) -> bytes:
        """What TLS has to send."""
        return self._out.read()

    def issuer_and_name(self) -> str:
        certificate = self._tls.getpeercert()
        assert certificate
        return str(certificate["subject"][0][0][1])  # type: ignore[index]

    def _send(self) -> int:
        self._unsent += self.encrypted()
        try:
            sent = self.sock.send(self._unsent) if self._unsent else 0
        except (BlockingIOError, ConnectionError):
            return 0
        self._unsent = self._unsent[sent:]
        return sent

    def _receive(self) -> int:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return 0
        except ConnectionError:
            data = b""
        if not data:
            self.is_shut = True
            return 0
        self.seen += data
        self._in.write(data)
        try:
            while plain := self._tls.read(1 << 16):
                self.received += plain
        except ssl.SSLError:
            pass
        return len(data)
