"""Log messages: one line each, escaped, bounded."""

from __future__ import annotations

import io
import json
import logging

import pytest
from logbus_broker.logs import FIELD_LENGTH_MAX, LINES_PER_WINDOW, WINDOW_SECONDS, BoundedHandler, LineFormatter

HOSTILE = 'x\n2026-01-01 level=INFO message="all is well"\r\x1b[31m\u2028\x00'


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def handler(stream: io.StringIO) -> BoundedHandler:
    handler = BoundedHandler(stream)
    handler.setFormatter(LineFormatter(json_lines=False))
    return handler


def record(
    text: str = "closing %s", *details: object, at: float = 1_700_000_000.5, level: int = logging.WARNING, **extra: object
) -> logging.LogRecord:
    made = logging.LogRecord("broker.test", level, __file__, 1, text, details, None)
    made.created, made.msecs = at, (at % 1) * 1000
    vars(made).update(extra)
    return made


@pytest.mark.parametrize("json_lines", [False, True])
def test_what_a_peer_chose_cannot_begin_a_line_or_reach_the_terminal(json_lines: bool) -> None:
    line = LineFormatter(json_lines=json_lines).format(record("client %s", HOSTILE, peer=HOSTILE))
    assert line.isascii()
    assert line.isprintable()
    assert "all is well" in line, "it is shown, escaped"


def test_fields_are_where_a_parser_finds_them() -> None:
    line = LineFormatter(json_lines=False).format(record("closing %s", "a b", peer="127.0.0.1:9"))
    assert line.endswith('.500 level=WARNING logger=broker.test message="closing a b" peer=127.0.0.1:9')
    assert json.loads(LineFormatter(json_lines=True).format(record("closing %s", 'a "b"')))["message"] == 'closing a "b"'


def test_an_exception_is_part_of_its_line() -> None:
    try:
        raise ValueError("bad\nname")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    line = LineFormatter(json_lines=False).format(made)
    assert "\n" not in line
    assert r"ValueError: bad\nname" in line


def test_a_long_field_is_cut() -> None:
    assert len(LineFormatter(json_lines=False).format(record("%s", "y" * 100_000))) < FIELD_LENGTH_MAX + 300


def test_a_class_of_events_gets_a_few_lines_and_then_a_count(handler: BoundedHandler, stream: io.StringIO) -> None:
    for number in range(1000):
        handler.handle(record("closing %s", number))
    handler.handle(record("another"))
    assert len(stream.getvalue().splitlines()) == LINES_PER_WINDOW + 1
    handler.handle(record("closing %s", "later", at=1_700_000_000.5 + WINDOW_SECONDS))
    told, later = stream.getvalue().splitlines()[-2:]
    assert f"suppressed={1000 - LINES_PER_WINDOW}" in told
    assert "left out within 10 s: closing 999" in told, "what it said, not its template"
    assert "closing later" in later


def test_a_count_is_told_also_when_the_event_does_not_come_again(handler: BoundedHandler, stream: io.StringIO) -> None:
    for number in range(50):
        handler.handle(record("closing %s", number))
    handler.report(1_700_000_001.0)
    assert len(stream.getvalue().splitlines()) == LINES_PER_WINDOW, "its window is not over"
    handler.report(1_700_000_000.5 + WINDOW_SECONDS)
    handler.report(1_700_000_000.5 + 2 * WINDOW_SECONDS)
    assert f"suppressed={50 - LINES_PER_WINDOW}" in stream.getvalue().splitlines()[-1]
    assert len(stream.getvalue().splitlines()) == LINES_PER_WINDOW + 1


def test_what_is_critical_is_never_left_out(handler: BoundedHandler, stream: io.StringIO) -> None:
    for _ in range(50):
        handler.handle(record("a flush failed", level=logging.CRITICAL))
    assert len(stream.getvalue().splitlines()) == 50
