"""One event, one log line, whatever caused it: key=value or JSON, escaped, and never more than a few of a kind.

Log lines contain text chosen by peers (client ids, topic names, error texts): everything unprintable is escaped and fields have a
length limit, so no peer can forge a line or colour a terminal. An event class is a logger plus a message template; of each class,
a few lines pass per time window, then one line reports how many were suppressed. So neither a port scanner nor a broken client
can fill the disk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Protocol, TextIO

LINES_PER_WINDOW = 5
WINDOW_SECONDS = 10.0
_CLASSES_MAX = 256  # the broker has fewer templates than this; a safety limit nevertheless
FIELD_LENGTH_MAX = 2_000

logger = logging.getLogger("broker.bugs")
audit = logging.getLogger("broker.audit")

BROKER_BUG = "(broker bug)"  # ends every line that only a bug of the broker can cause: tests look for it

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(stream: TextIO, *, level: str, form: str) -> None:
    """Send the whole process's log to `stream`, in the format selected by `logbus.log.format`."""
    handler = BoundedHandler(stream)
    handler.setFormatter(LineFormatter(json_lines=form == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Lines(Protocol):
    """Takes lines, each with its end: a file, or a topic."""

    def write(self, line: str, /) -> object: ...

    def flush(self) -> object: ...


def set_up_audit_log(stream: Lines) -> None:
    """Send what `broker.audit` logs to `stream`, as JSON lines. Refusals, which anybody can cause, are bounded as all other
    events are; each change that was allowed has its line."""
    refusals, changes = BoundedHandler(stream), logging.StreamHandler(stream)
    refusals.addFilter(lambda record: record.levelno >= logging.WARNING)
    changes.addFilter(lambda record: record.levelno < logging.WARNING)
    for handler in (refusals, changes):
        handler.setFormatter(LineFormatter(json_lines=True))
        audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def log_bug(event: str, *args: object, error: BaseException | None = None, extra: Mapping[str, object] | None = None) -> None:
    """Log an unexpected exception with its traceback: `error`, or the one being handled."""
    logger.error(f"{event} {BROKER_BUG}", *args, exc_info=error or True, extra=extra)


def report_suppressed(now: float) -> None:
    """Log how many lines were suppressed, for event classes whose window is over. `now` is in seconds since the epoch."""
    for handler in (*logging.getLogger().handlers, *audit.handlers):
        if isinstance(handler, BoundedHandler):
            handler.report(now)


class LineFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and what the caller passed as `extra`."""

    def __init__(self, *, json_lines: bool) -> None:
        super().__init__()
        self._json = json_lines

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: str(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        limited = {name: _limited(value, FIELD_LENGTH_MAX * (5 if name == "exception" else 1)) for name, value in fields.items()}
        if self._json:
            return json.dumps(limited)
        return " ".join(f"{name}={_quoted(value)}" for name, value in limited.items())


def _limited(value: str, length_max: int) -> str:
    return value if len(value) <= length_max else f"{value[:length_max]}... ({len(value)} characters)"


def _quoted(value: str) -> str:
    """Bare if it is one plain word, else in quotes, with every character escaped that could end the quotes or the line."""
    if value and value.isprintable() and not any(character in ' "=\\' for character in value):
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()


class _Window:
    """One event class in its current window."""

    __slots__ = ("began", "passed", "sample", "suppressed")

    def __init__(self, began: float, sample: logging.LogRecord) -> None:
        self.began = began
        self.sample = sample
        self.passed = 0
        self.suppressed = 0


class BoundedHandler(logging.StreamHandler[Lines]):
    """Writes the first LINES_PER_WINDOW records of each event class per WINDOW_SECONDS, and counts the rest."""

    def __init__(self, stream: Lines) -> None:
        super().__init__(stream)
        self._windows: dict[tuple[str, str], _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held, as logging does."""
        key = (record.name, str(record.msg))
        if key not in self._windows and len(self._windows) >= _CLASSES_MAX:
            key = ("", "")
        window = self._windows.get(key)
        if window is None or record.created - window.began >= WINDOW_SECONDS:
            if window is not None:
                self._tell(window)
            window = self._windows[key] = _Window(record.created, record)
        if window.passed < LINES_PER_WINDOW or record.levelno >= logging.CRITICAL:
            window.passed += 1
            super().emit(record)
        else:
            window.sample = record
            window.suppressed += 1

    def report(self, now: float) -> None:
        """Log what was suppressed in windows that are over, and forget them."""
        self.acquire()
        try:
            for key in [key for key, window in self._windows.items() if now - window.began >= WINDOW_SECONDS]:
                self._tell(self._windows.pop(key))
        finally:
            self.release()

    def _tell(self, window: _Window) -> None:
        if not window.suppressed:
            return
        sample = window.sample
        text = "%d more lines like this one were left out within %.0f s: %s"
        details = (window.suppressed, WINDOW_SECONDS, sample.getMessage())
        record = logging.LogRecord(sample.name, sample.levelno, sample.pathname, sample.lineno, text, details, None)
        record.suppressed = window.suppressed
        super().emit(record)
