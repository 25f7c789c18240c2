"""A connection's output: every byte is sent once and in order, however much the socket takes at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus_broker.filesystem import FileSlice, FileSystem, OpenFile
from logbus_broker.network.buffers import GATHERED_BYTES_MAX, Output, ShortFile
from logbus_broker.settings import BrokerConfig

from tests.support.sockets import ScriptedOutput, ScriptedSocket

BUDGET = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    path = tmp_path / "log"
    path.write_bytes(os.urandom(4 * GATHERED_BYTES_MAX))
    return FileSystem().open(path)


class Wire:
    """A pair of sockets; with `sends_slowly` the sender takes a few pages at a time."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)

    def send_all(self, output: Output) -> bytes:
        received = b""
        while output:
            output.send(self.near, BUDGET)
            received += self.read()
        return received + self.read()

    def read(self) -> bytes:
        received = b""
        while True:
            try:
                received += self.far.recv(1 << 16)
            except BlockingIOError:
                return received


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.near.close()
    wire.far.close()


@pytest.mark.parametrize("length", [0, 1, 10_000, GATHERED_BYTES_MAX, GATHERED_BYTES_MAX + 1, 3 * GATHERED_BYTES_MAX])
def test_slices_of_any_length_arrive_between_what_stands_around_them(file: OpenFile, wire: Wire, length: int) -> None:
    output = Output()
    output.extend([b"before", FileSlice(file, 7, length), b"between", FileSlice(file, 11, length), b"behind"])
    content = file.path.read_bytes()
    assert wire.send_all(output) == b"before" + content[7 : 7 + length] + b"between" + content[11 : 11 + length] + b"behind"
    assert output.bytes_queued == 0


def test_nothing_of_a_slice_is_held_for_a_peer_that_takes_no_more(file: OpenFile, wire: Wire) -> None:
    output = Output()
    output.extend([b"before", FileSlice(file, 0, 100_000), b"behind"])
    assert 0 < output.send(wire.near, BUDGET) < 100_000
    assert output.bytes_queued == len(b"behind")
    assert wire.send_all(output) == b"before" + file.path.read_bytes()[:100_000] + b"behind"
    assert output.bytes_queued == 0


def test_a_short_slice_leaves_with_what_stands_around_it(file: OpenFile) -> None:
    calls: list[list[bytes]] = []

    class Recording:
        def sendmsg(self, buffers: list[bytes], *_: object) -> int:
            calls.append(list(buffers))
            return sum(map(len, buffers))

    output = Output()
    output.extend([b"head", FileSlice(file, 0, 4), b"tail"])
    output.send(Recording(), BUDGET)  # type: ignore[arg-type]
    assert calls == [[b"head", file.path.read_bytes()[:4], b"tail"]]
    assert not output


@pytest.mark.parametrize("length", [100, 2 * GATHERED_BYTES_MAX])
def test_a_file_that_ends_early_is_noticed(file: OpenFile, wire: Wire, length: int) -> None:
    output = Output()
    output.extend([b"head", FileSlice(file, 4 * GATHERED_BYTES_MAX - 50, length), b"tail"])
    with pytest.raises(ShortFile):
        wire.send_all(output)


def test_the_answer_that_clients_ask_for_by_default_leaves_in_one_turn(tmp_path: Path) -> None:
    """The headers around a mebibyte of records must not push its last bytes into another turn."""
    path = tmp_path / "log"
    path.write_bytes(bytes(1 << 20))
    output, sock = ScriptedOutput(), ScriptedSocket()
    output.extend([bytes(200), FileSlice(FileSystem().open(path), 0, 1 << 20), bytes(3)])
    output.send(sock, BrokerConfig(log_dirs=tmp_path).send_bytes_per_turn_max)  # type: ignore[arg-type]
    assert not output
    assert len(sock.sent) == 200 + (1 << 20) + 3
