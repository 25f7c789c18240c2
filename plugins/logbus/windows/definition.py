"""A pipeline's definition as JSON: what it loads, where and how, in the form that the ledger stores with attempts and DAGs.

Two definitions are the same if their JSON is: a tuple in a DAG file equals the list read back from the ledger. `differences`
lists option by option how two of them differ, under the names that a user writes.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from logbus import errors, model, pipeline_settings

Definition = Mapping[str, Any]

SETTINGS = "settings"
NOT_GIVEN = "not given"

SINK = pipeline_settings.PipelineSettings.sink

# By sink: the settings that determine where its rows are stored, in order of precedence.
LOCATING: Mapping[str, tuple[str, ...]] = {"iceberg": ("catalog", "warehouse")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One option in which two definitions of a pipeline differ."""

    option: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.option}: {self.before} -> {self.after}"

    @property
    def contradiction(self) -> str:
        """The same, if neither definition came first."""
        return f"{self.option}: {self.before} against {self.after}"


def definition_of(pipeline: model.Pipeline) -> dict[str, Any]:
    """The pipeline as it would be read back from the ledger. Raises `UserError` for settings that JSON cannot hold."""
    try:
        settings = json.loads(json.dumps(pipeline.options.given, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise errors.UserError(
            f"pipeline {pipeline.name}: its settings are kept as JSON, which cannot hold them: {error}"
        ) from None
    if settings.get(SINK.name) == SINK.default:
        del settings[SINK.name]  # the same as not given
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "parse": pipeline.parse,
        "interval_seconds": pipeline.interval.total_seconds(),
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and model.instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        SETTINGS: settings,
    }


def pipeline_of(definition: Definition) -> model.Pipeline:
    """The inverse of `definition_of`."""
    return model.Pipeline(
        name=definition["name"],
        topic=definition["topic"],
        table=definition["table"],
        parse=definition["parse"],
        interval=timedelta(seconds=definition["interval_seconds"]),
        lateness=timedelta(seconds=definition["lateness_seconds"]),
        starts_at=definition["starts_at"] and model.parse_instant(definition["starts_at"]),
        isolation_level=definition["isolation_level"],
        settings=definition[SETTINGS],
    )


def differences(before: Definition, after: Definition) -> list[Difference]:
    """How `after` differs from `before`, option by option; empty if they are the same definition."""
    first, second = ({} if before == after else options_of(definition) for definition in (before, after))
    return [
        Difference(option=option, before=shown(first, option), after=shown(second, option))
        for option in dict.fromkeys((*first, *second))
        if option not in first or option not in second or first[option] != second[option]
    ]


def options_of(definition: Definition) -> dict[str, Any]:
    """Fields and settings in one mapping, under the names that a user writes."""
    options = {**definition, SINK.name: SINK.default, **definition[SETTINGS]}
    del options[SETTINGS]
    for span in ("interval", "lateness"):
        options[span] = timedelta(seconds=options.pop(f"{span}_seconds"))
    return options


def shown(options: Mapping[str, Any], option: str) -> str:
    if option not in options or options[option] is None:
        return NOT_GIVEN
    value = options[option]
    return str(value) if isinstance(value, str | timedelta) else json.dumps(value, ensure_ascii=False)


def location_of(definition: Definition) -> str:
    """The setting that determines where the pipeline's rows are stored; the names of table and sink determine the rest. Paths are
    without insignificant parts: `/data/` and `file:///data` are `/data`."""
    settings = definition[SETTINGS]
    for option in LOCATING.get(settings.get(SINK.name, SINK.default), ()):
        if option in settings:
            return f"{option} {posixpath.normpath(str(settings[option]).removeprefix('file://'))}"
    return "no place at all"


def in_words(changes: Sequence[Difference]) -> str:
    """The differences between two contradicting definitions, in one line."""
    return "; ".join(difference.contradiction for difference in changes)
