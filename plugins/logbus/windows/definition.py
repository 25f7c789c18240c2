"""A pipeline's definition as JSON: what it loads, where and how, in the form that the ledger stores with attempts and DAGs.

Two definitions are the same if their JSON is: a tuple in a DAG file equals the list read back from the ledger, and
`public.t` is the table `t`. `differences` lists option by option how two of them differ, under the names that a user writes.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from logbus import errors, model, pipeline_settings
from logbus.windows.table_names import canonical_table

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
    """The pipeline as JSON-ready values. Raises `UserError` for settings that JSON cannot hold."""
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": canonical_table(pipeline.table),
        "parse": pipeline.parse,
        "interval_seconds": pipeline.interval.total_seconds(),
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and model.instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        SETTINGS: settings_json(pipeline),
    }


def settings_json(pipeline: model.Pipeline) -> dict[str, Any]:
    """The settings as they would be read back from the ledger."""
    try:
        text = json.dumps(dict(pipeline.settings), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.UserError(
            f"pipeline {pipeline.name}: its settings are kept as JSON, which cannot hold them: {error}"
        ) from None
    settings: dict[str, Any] = json.loads(text)
    if settings.get(SINK.name) == SINK.default:
        del settings[SINK.name]  # the same as not given
    return settings


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


def is_same(pipeline: model.Pipeline, other: model.Pipeline) -> bool:
    return definition_of(pipeline) == definition_of(other)


def differences(before: model.Pipeline, after: model.Pipeline) -> list[Difference]:
    """How `after` differs from `before`, option by option; empty if they are the same definition."""
    first, second = options_of(before), options_of(after)
    return [
        Difference(option=option, before=shown(first, option), after=shown(second, option))
        for option in dict.fromkeys((*first, *second))
        if option not in first or option not in second or first[option] != second[option]
    ]


def options_of(pipeline: model.Pipeline) -> dict[str, Any]:
    """Fields and settings in one mapping, under the names that a user writes."""
    definition = definition_of(pipeline)
    settings = {SINK.name: SINK.default, **definition.pop(SETTINGS)}
    for span in ("interval", "lateness"):
        definition[span] = timedelta(seconds=definition.pop(f"{span}_seconds"))
    return {**definition, **settings}


def shown(options: Mapping[str, Any], option: str) -> str:
    if option not in options or options[option] is None:
        return NOT_GIVEN
    value = options[option]
    return str(value) if isinstance(value, str | timedelta) else json.dumps(value, ensure_ascii=False)


def location_of(pipeline: model.Pipeline) -> dict[str, str]:
    """The setting that determines where the pipeline's rows are stored; the names of table and sink determine the rest."""
    options = LOCATING.get(pipeline.options.sink, ())
    given = [option for option in options if option in pipeline.settings]
    return {option: plain_place(str(pipeline.settings[option])) for option in given[:1]}


def plain_place(location: str) -> str:
    """A path or URI without insignificant parts: `/data/` and `file:///data` are `/data`."""
    return posixpath.normpath(location.removeprefix("file://"))


def in_words(changes: Sequence[Difference]) -> str:
    """The differences between two contradicting definitions, in one line."""
    return "; ".join(difference.contradiction for difference in changes)
