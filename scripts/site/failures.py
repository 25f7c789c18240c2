"""The reference of errors: the tree of `logbus.errors`, each with its docstring and its base class."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from logbus import errors, exit_codes

from scripts.site.tables import code, plain, table

INTRODUCTION = """# Errors

Everything logbus raises on purpose, made from `plugins/logbus/errors.py`. The command line prints it as one line,
`error: ...`, that says what happened and what to do; anything else is a defect and keeps its traceback. Scripts look at the
[exit status](../cli.md#exit-statuses). The broker's answers are Kafka's own error codes:
[what happens when](../faults.md) lists which.

"""


def failures_page() -> str:
    return INTRODUCTION + table(("error", "is a", "exit status", "meaning"), rows(errors.LogbusError)) + "\n"


def rows(kind: type[Exception]) -> Iterator[list[str]]:
    """The error, then those below it."""
    text = inspect.getdoc(kind) or ""
    status = str(int(exit_codes.of_kind(kind)))
    yield [code(kind.__name__), code(kind.__bases__[0].__name__), status, plain(" ".join(text.split()))]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from rows(below)
