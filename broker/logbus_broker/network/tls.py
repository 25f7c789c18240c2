"""A client over TLS: the same requests and answers, through OpenSSL instead of the socket; and who its certificate says it is:
the certificate's subject as a name (RFC 2253), and ssl.principal.mapping.rules, which make a principal of the name, both as Kafka
writes them, so that its rules and ACLs keep their meaning.

What differs from a plain socket, and is kept apart here so that a plain connection costs nothing more:

- OpenSSL decrypts a record as a whole. What a read leaves of it is announced by nobody: epoll sees encrypted bytes only. So a
  read fills its buffer as far as it can, and a connection that may have more stays on the loop's ready list.
- Either direction may wait for the other one (a read that has to answer a change of keys). What TLS waits for is kept apart from
  what the broker wants, and changes only which events are watched.
- A write takes all of its bytes or none, and one that took none must be repeated with the same bytes at the front. So output
  leaves in pieces, and the piece that did not go is kept; it counts in held_bytes.
- os.sendfile would put a file's bytes on the wire as they are, unencrypted. Here nothing has a way to the descriptor: `TlsStream`
  has no fileno(), and `TlsOutput` reads slices of files.
- A handshake costs half a millisecond or more, and every stranger may begin one: the loop does a few steps in a turn, and epoll
  reports the others again. A connection without a request gives way like any silent one (acceptor.py), and is closed after
  logbus.first.request.max.ms.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from logbus_broker.errors import ConfigError, TlsFailure
from logbus_broker.filesystem import FileSlice
from logbus_broker.network.buffers import Output, ShortFile
from logbus_broker.network.connection import Connection
from logbus_broker.network.poller import READ, WRITE

Subject = Sequence[Sequence[tuple[str, str]]]  # as `ssl` gives it: relative names, each of pairs of a kind and a value

# Java writes these kinds with their keyword.
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


class _Encoded(NamedTuple):
    """A kind without a keyword: Java writes its number, and its value as the bytes of the certificate."""

    number: str
    string_tag: int  # ASN.1's: 0x16 an IA5String, 0x13 a PrintableString


# Kinds whose values have one type of string in every certificate; of others the type is not known any more.
_NUMBERS = {"emailAddress": _Encoded("1.2.840.113549.1.9.1", 0x16), "serialNumber": _Encoded("2.5.4.5", 0x13)}
_SPECIAL = re.compile(r'([,=+<>#;"\\])')


def name_of(subject: Subject) -> str:
    """The last relative name of the certificate comes first."""
    return ",".join("+".join(_attribute(kind, value) for kind, value in relative) for relative in reversed(subject))


def _attribute(kind: str, value: str) -> str:
    if kind in _NUMBERS:
        number, string_tag = _NUMBERS[kind]
        encoded = value.encode()
        length = len(encoded)
        head = bytes([length]) if length < 128 else bytes([0x81, length]) if length < 256 else b"\x82" + length.to_bytes(2, "big")
        return f"{number}=#{bytes([string_tag]).hex()}{head.hex()}{encoded.hex()}"
    escaped = _SPECIAL.sub(r"\\\1", value)
    inner = escaped.strip(" ")
    spaces = len(escaped) - len(escaped.lstrip(" ")), len(escaped) - len(escaped.rstrip(" "))
    if not inner:
        return f"{_KEYWORDS.get(kind, kind)}=" + "\\ " * len(escaped)
    return f"{_KEYWORDS.get(kind, kind)}=" + "\\ " * spaces[0] + inner + "\\ " * spaces[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MappingRule:
    """What the whole name must match, and what the user's name is then; without a pattern, the name as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        groups = (match[0], *match.groups(default=""))

        def referred(reference: re.Match[str]) -> str:
            number = int(reference[1])
            return groups[number] if number < len(groups) else reference[0]

        user = re.sub(r"\$([0-9]+)", referred, self.replacement)
        return user.lower() if self.case == "L" else user.upper() if self.case == "U" else user


# A slash inside a pattern or a replacement is written \/. A comma is no end of a rule until its last slash.
_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class PrincipalRules:
    """ssl.principal.mapping.rules; the first that matches counts."""

    def __init__(self, text: str) -> None:
        self._rules = tuple(_parsed(text))

    def principal(self, subject: Subject) -> str | None:
        """`User:NAME`; None if no rule matches, and such a client has no access."""
        name = name_of(subject)
        users = (rule.apply(name) for rule in self._rules)
        return next((f"User:{user}" for user in users if user is not None), None)


def _parsed(text: str) -> Iterable[_MappingRule]:
    position, text = 0, text.strip() or "DEFAULT"
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {text[position:]!r} is not a rule: write DEFAULT or RULE:REGEX/REPLACEMENT/, "
                "which L or U may follow, with commas between rules"
            )
        position = match.end()
        pattern, replacement, case = match.groups()
        if pattern is None:
            yield _MappingRule(pattern=None)
            continue
        try:
            yield _MappingRule(pattern=re.compile(pattern), replacement=re.sub(r"\\(.)", r"\1", replacement), case=case)
        except re.error as error:
            raise ConfigError(f"ssl.principal.mapping.rules: {pattern!r} is not a regular expression: {error}") from None


# A client over TLS: the same requests and answers, through OpenSSL instead of the socket.


_PIECE_BYTES = 64 * 1024  # measured: 16 KiB costs a fifth more CPU, 256 KiB no less
HANDSHAKES_PER_TURN_MAX = 8  # 5 to 10 ms of the loop
# What a client that speaks no TLS begins with makes OpenSSL say one of these.
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG"})


class HandshakeShare:
    """How many more steps of handshakes this turn of the loop may take; turns differ by their time."""

    def __init__(self) -> None:
        self._turn = -1.0
        self._left = 0

    def take(self, now: float) -> bool:
        if now != self._turn:
            self._turn, self._left = now, HANDSHAKES_PER_TURN_MAX
        self._left -= 1
        return self._left >= 0


class TlsStream:
    """A non-blocking socket's bytes, decrypted: what `Connection` and `LargeFrame` need of a socket. BlockingIOError means "not
    now", as with a socket; `read_wants_write` and `write_wants_read` say if TLS waits for the other direction."""

    __slots__ = ("_sock", "has_more", "read_wants_write", "write_wants_read")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.has_more = False  # whether the next read may return something without an event
        self.read_wants_write = False
        self.write_wants_read = False

    def handshake(self) -> bool:
        """One step; True once it is complete. Raises ConnectionError if the peer has gone, TlsFailure."""
        self.read_wants_write = False
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.read_wants_write = True
            return False
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise ConnectionResetError("closed during the handshake") from None
        except ssl.SSLError as error:
            raise _failure(error) from None
        return True

    def certificate(self) -> dict[str, Any]:
        """The peer's, verified; empty if it has shown none."""
        return self._sock.getpeercert() or {}

    def recv_into(self, view: memoryview) -> int:
        """Fill the view as far as possible. 0 at the end."""
        count = 0
        self.has_more, self.read_wants_write = True, False
        try:
            while count < len(view):
                received = self._sock.recv_into(view[count:])
                if not received:
                    return count  # after some data, the next read returns 0 again
                count += received
        except ssl.SSLWantReadError:
            self.has_more = False
        except ssl.SSLWantWriteError:
            self.has_more, self.read_wants_write = False, True
        except ssl.SSLError as error:
            raise _failure(error) from None
        if not count:
            raise BlockingIOError
        return count

    def send(self, data: bytes) -> int:
        """All of it, or BlockingIOError: then the same bytes must come first next time."""
        self.write_wants_read = False
        try:
            return self._sock.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self.write_wants_read = True
            raise BlockingIOError from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise ConnectionResetError("closed by the peer") from None
        except ssl.SSLError as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Say goodbye if that is possible at once: some clients report an error where it is missing."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()
        self._sock.close()


def _failure(error: ssl.SSLError) -> TlsFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure(f"the certificate is refused: {error.verify_message}")
    if error.reason in _NOT_TLS:
        return TlsFailure("the client does not speak TLS (security.protocol is not SSL or SASL_SSL?)")
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return TlsFailure("the client has no certificate, and ssl.client.auth=required")
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return TlsFailure(f"the client refused: {reason}" if "alert" in reason else reason)


class TlsOutput(Output):
    """What a connection has to send, encrypted in pieces. Slices of files are read, never sent by the kernel."""

    __slots__ = ("_piece",)

    def __init__(self) -> None:
        super().__init__()
        self._piece = b""  # taken off the queue, and not sent yet

    def __bool__(self) -> bool:
        return bool(self._piece) or bool(self._parts)

    def send(self, sock: Any, budget: int) -> int:
        sent = 0
        while self and sent < budget:
            self._piece = self._piece or self._next_piece()
            try:
                count = sock.send(self._piece)
            except BlockingIOError:
                break
            sent += count
            self.bytes_queued -= count
            self._piece = self._piece[count:]
        return sent

    def _next_piece(self) -> bytes:
        """The front of the queue: small answers together, for each record costs."""
        gathered: list[bytes | memoryview] = []
        room = _PIECE_BYTES
        while self._parts and room:
            part = self._parts[0]
            if isinstance(part, FileSlice):
                data: bytes | memoryview = self._read_front(part, room)
            else:
                data = memoryview(part)[:room] if len(part) > room else part
                if len(data) < len(part):
                    self._parts[0] = memoryview(part)[room:]
                else:
                    self._parts.popleft()
            gathered.append(data)
            room -= len(data)
        return gathered[0] if len(gathered) == 1 and isinstance(gathered[0], bytes) else b"".join(gathered)

    def _read_front(self, part: FileSlice, room: int) -> bytes:
        data = os.pread(part.fileno(), min(part.length, room), part.position)
        if not data:
            raise ShortFile(f"{part.length} bytes missing")
        part.position += len(data)
        part.length -= len(data)
        self.bytes_queued += len(data)
        if not part.length:
            self._parts.popleft()
            part.release()
        return data

    def close(self) -> None:
        self._piece = b""
        super().close()


class TlsConnection(Connection):
    """A connection that begins with a handshake. `rules` make a principal of the client's certificate; None: they log in."""

    __slots__ = ("_handshakes", "_is_established", "_rules", "_stream")

    is_tls = True

    def __init__(
        self, sock: ssl.SSLSocket, peer: str, *, handshakes: HandshakeShare, rules: PrincipalRules | None, **common: Any
    ) -> None:
        super().__init__(sock, peer, **common)
        self._stream = TlsStream(sock)
        self.sock = cast(Any, self._stream)  # from here on, nothing can reach the descriptor
        self.output = TlsOutput()
        self._handshakes = handshakes
        self._rules = rules
        self._is_established = False

    def receive(self, now: float) -> None:
        if not self._is_established:
            if not self._handshakes.take(now):
                return  # epoll reports it again in the next turn
            try:
                self._is_established = self._stream.handshake()
            except ConnectionError:
                self.closing = "peer"
            if not self._is_established:
                self._on_ready(self)  # the events to watch for may have changed
                return
            self._note_certificate()
        super().receive(now)
        if self._stream.write_wants_read or (self._stream.has_more and self.wants_to_read):
            self._on_ready(self)

    def _note_certificate(self) -> None:
        certificate = self._stream.certificate()
        if self._rules is None or not certificate:
            return
        principal = self._rules.principal(certificate["subject"])
        if principal is None:
            subject = name_of(certificate["subject"])
            raise TlsFailure(f"no rule of ssl.principal.mapping.rules fits the client's certificate: {subject}")
        self.origin = self.origin._replace(principal=principal)

    def _send_at_once(self, answer: bytes, now: float) -> None:
        self.output.append(answer)  # what does not go has to be repeated as it is: `TlsOutput` keeps it
        self.send(now)
        if self.output:
            self._on_ready(self)

    @property
    def reads_ahead(self) -> bool:
        """Whether to read without an event: there may be decrypted bytes, or the socket has room again, which a read wanted."""
        return self._stream.has_more or self._stream.read_wants_write

    def events(self, interest: int) -> int:
        """What to watch for, where the broker is interested in these events."""
        if self._stream.write_wants_read:
            interest = interest & ~WRITE | READ
        return interest | WRITE if self._stream.read_wants_write else interest
