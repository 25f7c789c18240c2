"""TLS on real sockets, in a loop whose turns the test decides: what a client gets is what a plain one gets, and nothing else leaves."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.errors import ConfigError
from logbus_broker.filesystem import FileSlice, FileSystem
from logbus_broker.network.poller import READ
from logbus_broker.network.throttling import Throttle
from logbus_broker.network.tls import HANDSHAKES_PER_TURN_MAX
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Request, request_frame
from logbus_broker.protocol.produce import ProduceAnswer, encode_produce_response
from logbus_broker.security.quotas import PRODUCER_BYTES, ClientQuotas
from logbus_broker.security.state import SecurityState

from benchmarks.peers.authority import Authority
from tests.support.loop import LISTENING
from tests.support.sockets import metadata_frame
from tests.support.tls_loop import TlsClient, TlsLoop, tls_listener

PLANTED = b"a record that nobody may see on the wire"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_pem(authority: Authority) -> Path:
    return authority.issue("server")


@pytest.fixture
def settings(authority: Authority, server_pem: Path) -> dict[str, str]:
    """Of a broker whose only listener has TLS."""
    files = {"ssl.keystore.location": str(server_pem), "ssl.truststore.location": str(authority.certificate)}
    return {"listeners": "SSL://127.0.0.1:0", **files}


@pytest.fixture
def connect(authority: Authority) -> Iterator[Callable[..., TlsClient]]:
    clients: list[TlsClient] = []

    def joined(loop: TlsLoop, certificate: Path | None = None, *, shakes: bool = True) -> TlsClient:
        clients.append(TlsClient(loop, authority, certificate))
        if shakes:
            clients[-1].shake_hands()
        return clients[-1]

    yield joined
    for client in clients:
        client.sock.close()
        client.loop.stop()


def framed(answer: bytes, correlation_id: int) -> bytes:
    return (len(answer) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + answer


# -- requests and answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(10,), (3, 5, 70_000, 1), (900_000, 10), (4_000, 12_000, 16_384, 16_385, 30)])
def test_what_decrypts_is_handled_though_epoll_reports_nothing_more(sizes: tuple[int, ...], settings, connect) -> None:
    asked: list[bytes] = []

    def dispatch(request: Request) -> Parts:
        asked.append(bytes(request.body))
        return [b"answer"]

    loop = TlsLoop(dispatch, settings)
    client = connect(loop)
    frames = [metadata_frame(number, os.urandom(size)) for number, size in enumerate(sizes)]
    received = client.ask(b"".join(frames))
    assert asked == [frame[14:] for frame in frames]
    assert received == b"".join(framed(b"answer", number) for number in range(len(sizes)))
    assert loop.defects == []


@pytest.mark.parametrize("length", [1, 16_384, 65_536, 3_000_001])
def test_slices_of_files_leave_encrypted_and_a_slow_reader_holds_one_piece(
    length: int, settings, connect, tmp_path: Path
) -> None:
    content = (PLANTED * (length // len(PLANTED) + 1))[:length]
    (tmp_path / "log").write_bytes(content)
    file = FileSystem().open(tmp_path / "log")
    loop = TlsLoop(lambda request: [b"before", FileSlice(file, 0, length), b"after"], settings)
    client = connect(loop)
    (connection,) = loop.server._connections
    assert not hasattr(connection.sock, "fileno")
    client._tls.write(metadata_frame(7))
    client._send()
    while loop.step():  # nobody reads
        assert loop.network.held_bytes <= (1 << 16) + 1024
    client.exchange()
    assert client.received == framed(b"before" + content + b"after", 7)
    assert PLANTED not in client.seen
    assert loop.network.held_bytes == 0


def test_a_parked_request_leaves_what_was_decrypted_until_it_is_answered(settings, connect) -> None:
    parked: list[Pending] = []

    def dispatch(request: Request) -> Parts | Pending:
        if request.correlation_id:
            return [b"answer"]
        parked.append(Pending(stops_reading=True))
        return parked[-1]

    loop = TlsLoop(dispatch, settings)
    client = connect(loop)
    assert client.ask(metadata_frame(0, bytes(5_000)) + metadata_frame(1, bytes(9_000))) == b""
    parked[0].complete([b"at last"])
    loop.turn()
    client.exchange()
    assert client.received == framed(b"at last", 0) + framed(b"answer", 1)


def test_what_was_decrypted_before_a_client_was_held_up_is_handled_when_its_time_is_over(settings, connect) -> None:
    state = SecurityState(quotas={frozenset({("client-id", "app")}): {PRODUCER_BYTES: 1_000.0}})
    asked: list[int] = []

    def dispatch(request: Request) -> Parts:
        asked.append(request.correlation_id)
        return [encode_produce_response([ProduceAnswer("clicks", 0)], request.version)]

    loop = TlsLoop(dispatch, settings, throttle=lambda clock: Throttle(ClientQuotas(lambda: state, 11, 1.0), clock.monotonic))
    client = connect(loop)
    client.ask(b"".join(request_frame(ApiKey.PRODUCE, 9, number, b"app", bytes(20_000)) for number in range(2)))
    assert asked == [0]
    loop.clock.advance_ms(60_000)
    loop.turn()
    client.exchange()
    assert asked == [0, 1]


def test_a_client_that_says_goodbye_is_closed(settings, connect) -> None:
    loop = TlsLoop(lambda request: [b"answer"], settings)
    client = connect(loop)
    with pytest.raises(ssl.SSLWantReadError):
        client._tls.unwrap()
    client.exchange()
    assert client.is_shut
    assert loop.network.closed == {"peer": 1}


# -- handshakes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [metadata_frame(1), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", bytes(100)]
)
def test_what_is_no_tls_is_closed_and_told(data: bytes, settings, caplog: pytest.LogCaptureFixture) -> None:
    loop = TlsLoop(lambda request: [b"answer"], settings)
    with loop.join() as stranger:
        stranger.send(data)
        while loop.step():
            pass
    assert loop.network.closed == {"tls": 1}
    assert "TLS failed" in caplog.text
    assert loop.defects == []


def test_half_handshakes_cost_nobody_else_and_are_gone_at_the_deadline(settings, connect) -> None:
    loop = TlsLoop(lambda request: [b"answer"], settings)
    client = connect(loop)
    half = [loop.join() for _ in range(500)]
    for number, stranger in enumerate(half):
        stranger.send(b"\x16\x03\x01\x02\x00\x01")
        if number % 50 == 0:
            assert client.ask(metadata_frame(number)) == framed(b"answer", number)
    assert loop.network.connections == 501
    loop.clock.advance_ms(10_500)
    assert client.ask(metadata_frame(1)) == framed(b"answer", 1)
    loop.turn()
    assert loop.network.closed == {"silent": 500}
    for stranger in half:
        stranger.close()


def test_a_turn_takes_a_few_steps_of_handshakes(settings, connect) -> None:
    loop = TlsLoop(lambda request: [b"answer"], settings)
    clients = [connect(loop, shakes=False) for _ in range(3 * HANDSHAKES_PER_TURN_MAX)]
    for client in clients:
        client.hello()
    loop.clock.advance_ms(1)
    loop.turn([(descriptor, READ) for descriptor in loop.poller.asked if descriptor > LISTENING])
    assert sum(client._receive() > 0 for client in clients) == HANDSHAKES_PER_TURN_MAX
    for client in clients:
        client.shake_hands()


# -- principals ------------------------------------------------------------------------------------------------------------------


def whom(loop_settings: dict[str, str], connect: Callable[..., TlsClient], certificate: Path | None) -> str:
    loop = TlsLoop(lambda request: [request.origin.principal.encode()], loop_settings)
    return connect(loop, certificate).ask(metadata_frame(0))[8:].decode()


def test_a_certificate_is_a_principal(settings, connect, authority: Authority) -> None:
    bob = authority.issue("bob", units=("Data",))
    assert whom(settings, connect, bob) == "User:ANONYMOUS", "nobody asked for it"
    asking = settings | {"ssl.client.auth": "requested"}
    assert whom(asking, connect, None) == "User:ANONYMOUS"
    assert whom(asking, connect, bob) == "User:CN=bob,OU=Data"
    assert whom(asking | {"ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/U"}, connect, bob) == "User:BOB"


@pytest.mark.parametrize("shown", ["none", "foreign", "expired", "unmapped"])
def test_a_client_whose_certificate_does_not_count_is_refused(
    shown: str, settings, connect, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {"ssl.principal.mapping.rules": "RULE:^CN=bob$/bob/"}
    certificates = {
        "foreign": lambda: Authority(tmp_path).issue("bob"),
        "expired": lambda: authority.issue("late", days=-1),
        "unmapped": lambda: authority.issue("alice"),
    }
    loop = TlsLoop(lambda request: [b"answer"], settings | {"ssl.client.auth": "required"} | rules)
    client = connect(loop, certificates[shown]() if shown in certificates else None, shakes=False)
    try:
        client.shake_hands()
    except (ConnectionError, ssl.SSLError):
        pass
    assert client.is_shut
    assert loop.network.closed == {"tls": 1}
    assert "certificate" in caplog.text


# -- the keystore ----------------------------------------------------------------------------------------------------------------


def inline(pem: Path) -> dict[str, str]:
    """The keystore as settings of one line each."""
    key, _, chain = pem.read_text().partition("-----BEGIN CERTIFICATE-----")
    return {
        "ssl.keystore.location": "",
        "ssl.keystore.key": key.replace("\n", "\\n"),
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}".replace("\n", " "),
    }


def pkcs12(pem: Path, password: str) -> dict[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

    key, certificate = load_pem_private_key(pem.read_bytes(), None), x509.load_pem_x509_certificate(pem.read_bytes())
    store = pem.with_suffix(".p12")
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"us", key, certificate, None, BestAvailableEncryption(password.encode()))  # type: ignore[arg-type]
    )
    return {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store), "ssl.keystore.password": password}


def test_a_key_comes_from_a_file_a_setting_or_pkcs12(settings, connect, authority: Authority, server_pem: Path) -> None:
    encrypted = {"ssl.keystore.location": str(authority.issue("server-e", password="pw")), "ssl.key.password": "pw"}
    versions = {"ssl.enabled.protocols": "TLSv1.2"}
    for given in ({}, encrypted, inline(server_pem), pkcs12(server_pem, "pw"), versions):
        loop = TlsLoop(lambda request: [b"answer"], settings | given)
        client = connect(loop)
        assert client.ask(metadata_frame(1)) == framed(b"answer", 1)
    assert client._tls.version() == "TLSv1.2"


def test_a_keystore_that_cannot_be_used_is_named(settings, authority: Authority, server_pem: Path, tmp_path: Path) -> None:
    key, _, chain = server_pem.read_text().partition("-----BEGIN CERTIFICATE-----")
    chain = f"-----BEGIN CERTIFICATE-----{chain}"
    texts = {
        "absent.pem": None,
        "chain.pem": chain,
        "other.pem": key + authority.issue("other").read_text().partition("-----END PRIVATE KEY-----\n")[2],
        "expired.pem": authority.issue("old", days=-1).read_text(),
        "encrypted.pem": authority.issue("secret", password="pw").read_text(),
        "store.jks": "\udcfe\udced\udcfe\udced0",
        "store.p12": "0\udc82",
    }
    says = {
        "absent.pem": "cannot be read: No such file",
        "chain.pem": "the key, the certificate and its chain belong into one file",
        "other.pem": "the key does not belong to the certificate",
        "expired.pem": "certificate has expired",
        "encrypted.pem": "ssl.key.password is missing or wrong",
        "store.jks": "keytool -importkeystore",
        "store.p12": "set ssl.keystore.type=PKCS12",
    }
    for name, text in texts.items():
        path = tmp_path / name
        if text is not None:
            path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match=says[name]):
            tls_listener(settings | {"ssl.keystore.location": str(path)})
    wrong = pkcs12(server_pem, "pw") | {"ssl.keystore.password": "wrong"}
    for setting, given in (
        ("ssl.keystore.location", wrong),
        ("ssl.truststore.location", {"ssl.truststore.location": str(tmp_path / "chain")}),
    ):
        with pytest.raises(ConfigError, match=setting):
            tls_listener(settings | {"ssl.client.auth": "required"} | given)


def test_a_new_certificate_is_served_and_a_bad_one_is_not(
    settings, connect, authority: Authority, server_pem: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = tmp_path / "used.pem"
    used.write_bytes(server_pem.read_bytes())
    loop = TlsLoop(lambda request: [b"answer"], settings | {"ssl.keystore.location": str(used)})
    now = loop.clock.now_ms() / 1000
    earlier = connect(loop)
    loop.tls.sweep(now)
    soon = authority.issue("renewed", days=5)
    used.write_bytes(soon.read_bytes())
    os.utime(used, ns=(1, 1))  # whatever the clock of the file system
    loop.tls.sweep(now)
    assert connect(loop).issuer_and_name() == "renewed"
    assert earlier.issuer_and_name() == "server"
    assert earlier.ask(metadata_frame(1)) == framed(b"answer", 1), "the connection goes on"
    for bad in (soon.read_text().replace("A", "B", 40), authority.issue("gone", days=-1).read_text(), ""):
        used.write_text(bad)
        loop.tls.sweep(now)
        assert connect(loop).issuer_and_name() == "renewed"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3
    assert all("listener SSL keeps its certificate: ssl.keystore.location=" in error for error in errors)


def test_a_certificate_that_expires_soon_is_warned_of_once_a_day(settings, authority: Authority, caplog) -> None:
    listener = tls_listener(settings | {"ssl.keystore.location": str(authority.issue("short", days=20))})
    day = 86_400
    for before_days, warnings in ((15, 0), (13.9, 1), (13.5, 1), (12.8, 2)):
        listener.sweep(listener.expires_at - before_days * day)
        assert caplog.text.count("the certificate of listener SSL expires in") == warnings
