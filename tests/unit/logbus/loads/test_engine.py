from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from logbus.errors import UserError, WarehouseUnavailable
from logbus.loads.engine import connect, libpq_uri, shown_url, warehouse_url


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:a%40b@db:5432/logs",
        "postgresql://me:a%40b@db:5432/logs",
        "postgresql+psycopg2://me:a%40b@db:5432/logs",
        "postgresql+psycopg://me:a%40b@db:5432/logs",
    ],
)
def test_every_spelling_of_a_postgresql_url_is_taken(url: str) -> None:
    assert warehouse_url(url).drivername == "postgresql+psycopg"
    assert libpq_uri(url) == "postgresql://me:a%40b@db:5432/logs"


def test_a_unix_socket_stays_one() -> None:
    assert libpq_uri("postgresql+psycopg://postgres@/logbus?host=/tmp/pg") == "postgresql://postgres@/logbus?host=%2Ftmp%2Fpg"


def test_a_space_is_written_as_libpq_reads_it_and_settings_are_added() -> None:
    url = "postgresql://me:a%20b%2Bc@db/logs?options=-c%20search_path%3Dapp"
    assert libpq_uri(url) == "postgresql://me:a%20b+c@db/logs?options=-c%20search_path%3Dapp"
    assert libpq_uri(url, client_encoding="UTF8").endswith("search_path%3Dapp&client_encoding=UTF8")


@pytest.mark.parametrize("url", ["mysql://me@db/logs", "sqlite:///x.db", "nonsense", ""])
def test_what_is_no_postgresql_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="postgresql://"):
        warehouse_url(url)


def test_user_and_password_are_taken_from_the_query_into_their_own_fields() -> None:
    url = warehouse_url("postgresql://me:old@db/logs?user=u&password=S3CRET&sslmode=require")
    assert (url.username, url.password, dict(url.query)) == ("u", "S3CRET", {"sslmode": "require"})
    assert libpq_uri("postgresql://db/logs?user=u&password=x&password=a%26b") == "postgresql://u:a%26b@db/logs"


@pytest.mark.parametrize("name", ["password", "sslpassword", "passfile", "passwordd", "pasword"])
def test_no_secret_of_a_url_is_shown_under_whatever_name(name: str) -> None:
    shown = shown_url(warehouse_url(f"postgresql://u@db/logs?{name}=S3CRET&sslmode=require"))
    assert ("S3CRET" in shown, "sslmode=require" in shown) == (False, True)


@pytest.mark.parametrize("parameters", ["user=u&password=S3CRET", "sslpassword=S3CRET", "passwordd=S3CRET"])
def test_an_error_never_shows_a_password_of_the_query(parameters: str) -> None:
    with pytest.raises(UserError, match="the warehouse") as caught:
        connect(f"postgresql://127.0.0.1:1/db?{parameters}")
    assert "S3CRET" not in str(caught.value)


def test_a_parameter_that_makes_no_sense_is_the_users_error() -> None:
    for parameter in ("passwordd=x", "port=x"):
        with pytest.raises(UserError, match="cannot be used"):
            connect(f"postgresql://127.0.0.1:1/db?{parameter}")


STARTING_SERVER = """
import socket, struct, sys
fields = b"SFATAL\\0VFATAL\\0C57P03\\0Mthe database system is starting up\\0\\0"
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    for _ in range(int(sys.argv[1])):
        client, _ = listener.accept()
        with client:
            client.recv(4096)
            client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)
"""


@contextmanager
def starting_server(connections_max: int) -> Iterator[str]:
    """A server that says to the first connections that it is starting, and is gone then."""
    command = [sys.executable, "-I", "-c", STARTING_SERVER, str(connections_max)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"postgresql://me@127.0.0.1:{int(server.stdout.readline())}/logbus?sslmode=disable&gssencmode=disable"
        server.kill()


def test_a_server_that_is_starting_is_asked_again_and_one_that_is_gone_is_not() -> None:
    with starting_server(connections_max=6) as url, pytest.raises(WarehouseUnavailable, match="Check that the server runs"):
        connect(url)


def test_a_server_that_starts_for_too_long_is_said_to_be_starting() -> None:
    with (
        starting_server(connections_max=2) as url,
        pytest.raises(WarehouseUnavailable, match="gave up waiting for the warehouse.*is starting up"),
    ):
        connect(url, timeout_seconds=0)
