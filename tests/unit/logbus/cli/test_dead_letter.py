"""How dead letters are written out."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from logbus.cli.dead_letter import write
from logbus.loads.dead_letters import DeadLetter

from tests.support.ledgers import at

VALUE = "v\x1b]0;pwn\x07 \x9b31m".encode()
PLACE: dict[str, Any] = {"window_start": at(10), "topic": "t", "partition": 0, "offset": 1, "attempt": 1}
NOTHING = dict.fromkeys(("timestamp", "key", "headers", "run_id"))
LETTER = DeadLetter(value=VALUE, error_class="NotUtf8", error="no", **PLACE, **NOTHING)


def written(form: str, *, is_terminal: bool) -> bytes:
    file = io.BytesIO()
    write([LETTER], form, file, is_terminal=is_terminal)
    return file.getvalue()


def test_bytes_go_into_a_file_as_they_are_and_command_no_terminal() -> None:
    assert written("raw", is_terminal=False) == VALUE + b"\n"
    assert written("raw", is_terminal=True) == rb"v\x1b]0;pwn\x07 \x9b31m" + b"\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_json_commands_no_terminal_and_holds_the_same_value(is_terminal: bool) -> None:
    line = written("jsonl", is_terminal=is_terminal).decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["value"] == VALUE.decode()
