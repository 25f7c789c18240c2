"""The error budget: how much of a window may fail to parse before the load as a whole is refused.

It is set by a pipeline's `max_errors` (records of one window) and `max_error_rate` (0 to 1, of the records read). The default is
a tenth, and ten records of a window however small it is: a bad parser is caught, a bad line is tolerated. A window of which not
one record parses is never a success, unless `max_error_rate` is 1. Over budget nothing becomes public: the window stays as it
was, and the failed attempt keeps a bounded sample of what did not parse, because its dead letters are dropped with everything
else it staged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from logbus.errors import ErrorBudgetExceeded
from logbus.formatting import many, shown_value
from logbus.model import Interval, Pipeline, instant_text

# If a pipeline sets neither limit: whichever of the two allows more.
ERROR_RATE_DEFAULT = 0.1
ERRORS_DEFAULT_MIN = 10

# Kept in the ledger for an attempt over budget: enough to see what is wrong, and never more than about 50 KB.
CLASSES_KEPT_MAX = 10
EXAMPLES_KEPT_MAX = 20
VALUE_BYTES_KEPT_MAX = 2_000
EXAMPLES_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """A pipeline's settings; None: not set."""

    max_errors: int | None = None
    max_error_rate: float | None = None

    def overrun(self, *, read: int, errors: int) -> str | None:
        """The limit that this many errors among this many records exceed; None if they exceed none."""
        if self.max_errors is not None and errors > self.max_errors:
            return f"max_errors {self.max_errors}"
        if self.max_error_rate is not None and errors > self.max_error_rate * read:
            return f"max_error_rate {self.max_error_rate:g}"
        if (
            self.max_errors is None
            and self.max_error_rate is None
            and errors > max(ERRORS_DEFAULT_MIN, ERROR_RATE_DEFAULT * read)
        ):
            return "a tenth of them, unless max_errors or max_error_rate say otherwise"
        if read and errors == read and self.max_error_rate != 1:
            return "less than all of them, unless max_error_rate is 1"
        return None


def budget_of(pipeline: Pipeline) -> ErrorBudget:
    return ErrorBudget(max_errors=pipeline.options.max_errors, max_error_rate=pipeline.options.max_error_rate)


def refuse_over_budget(
    connection: Connection, pipeline: Pipeline, interval: Interval, dead_letter_table: str, *, read: int, errors: int
) -> None:
    """Raises `ErrorBudgetExceeded` with examples from the attempt's own dead letters (`dead_letter_table`, quoted for SQL)."""
    limit = budget_of(pipeline).overrun(read=read, errors=errors)
    if limit is None:
        return
    samples = take_samples(connection, dead_letter_table)
    classes = ", ".join(f"{sample['error_class']} {sample['count']}" for sample in samples["classes"])
    examples = "; ".join(example_text(pipeline.topic, sample) for sample in samples["examples"][:EXAMPLES_TOLD])
    raise ErrorBudgetExceeded(
        f"window {interval} of {pipeline.name}: {errors:,} of {many(read, 'record')} cannot be parsed. Its error budget is "
        f"{limit}, so nothing became public. Most frequent: {classes}. For example: {examples}. "
        f"`logbus window show --pipeline {pipeline.name} {instant_text(interval.start)}` has more. "
        "Mend the parser or raise the budget in the pipeline's settings, then load the window again",
        samples=samples,
    )


def example_text(topic: str, example: Mapping[str, Any]) -> str:
    return f"{topic}-{example['partition']} offset {example['offset']}: {example['error']}"


def take_samples(connection: Connection, dead_letter_table: str) -> dict[str, Any]:
    """The most frequent error classes, and examples: the first of each class, then the second of each, and so on."""
    classes = connection.execute(
        text(f"select error_class, count(*) from {dead_letter_table} group by 1 order by 2 desc, 1 limit :n"),
        {"n": CLASSES_KEPT_MAX},
    )
    numbered = (
        "select *, row_number() over each nth, count(*) over (partition by error_class) of_class "
        f'from {dead_letter_table} window each as (partition by error_class order by "partition", "offset")'
    )
    examples = connection.execute(
        text(
            f'select "partition", "offset", error_class, left(error, 500) error, substring(value for :bytes) head, '
            f"octet_length(value) size from ({numbered}) numbered order by nth, of_class desc, error_class limit :n"
        ),
        {"n": EXAMPLES_KEPT_MAX, "bytes": VALUE_BYTES_KEPT_MAX},
    )
    return {
        "classes": [{"error_class": name, "count": count} for name, count in classes],
        "examples": [example(row) for row in examples.mappings()],
    }


def example(row: Mapping[Any, Any]) -> dict[str, Any]:
    plain = {name: row[name] for name in ("partition", "offset", "error_class", "error", "size")}
    return {**plain, **shown_value(row["head"])}


def samples_of(error: Exception) -> Mapping[str, Any] | None:
    """The samples that an error carries of the records that caused it."""
    return error.samples if isinstance(error, ErrorBudgetExceeded) else None
