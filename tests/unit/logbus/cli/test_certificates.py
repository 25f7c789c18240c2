"""The authority of a home and its brokers' certificate, as TLS itself sees them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from logbus.cli.secure_home import RENEWED_BEFORE, SERVER_VALID, Authority
from logbus.errors import UserError

NAMES = ("localhost", "127.0.0.1", "broker.example")


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC) - (SERVER_VALID - RENEWED_BEFORE)

    def __call__(self) -> datetime:
        return self.now


def shake_hands(authority: Authority, path: Path, name: str) -> None:
    """As a client that checks everything and the broker do; raises what the client does."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cafile=str(authority.certificate_path))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, server_side=True)]
    for side in (*sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass


def test_the_brokers_are_known_by_their_names_and_by_no_other(tmp_path: Path) -> None:
    authority, path = Authority(tmp_path / "security"), tmp_path / "security" / "server.pem"
    authority.keep_server_certificate(path, NAMES)
    for name in NAMES:
        shake_hands(authority, path, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority, path, "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(Authority(tmp_path / "other"), path, "localhost")
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "security").iterdir()}
    assert modes == {"ca.pem": oct(0o644), "ca.key": oct(0o600), "server.pem": oct(0o600)}
    assert (tmp_path / "security").stat().st_mode & 0o777 == 0o700


def test_the_certificate_is_renewed_in_time_and_for_another_name_and_the_authority_stays(tmp_path: Path) -> None:
    clock, path, second = Clock(), tmp_path / "server.pem", tmp_path / "registry.pem"
    authority = Authority(tmp_path, clock=clock)

    def kept(names: tuple[str, ...] = NAMES, *, restarted: bool = False) -> bytes:
        nonlocal authority
        authority = Authority(tmp_path, clock=clock) if restarted else authority
        authority.keep_server_certificate(path, names)
        authority.keep_server_certificate(second, NAMES)  # one server's is kept whatever another's is
        return path.read_bytes()

    trusted, first = authority.certificate_path.read_bytes(), kept()
    assert (kept(restarted=True), kept(NAMES[:2], restarted=True)) == (first, first)
    clock.now += SERVER_VALID - RENEWED_BEFORE - timedelta(minutes=1)
    assert kept() == first
    clock.now += timedelta(minutes=2)
    renewed = kept()
    assert renewed != first
    assert kept((*NAMES, "10.0.0.7"), restarted=True) != renewed
    path.write_text("no certificate")
    kept(restarted=True)
    for server in (path, second):
        shake_hands(authority, server, "localhost")
    assert authority.certificate_path.read_bytes() == trusted


def test_an_authority_without_its_key_says_what_to_do(tmp_path: Path) -> None:
    Authority(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(UserError, match="restore it, or remove the folder"):
        Authority(tmp_path)
