"""How far pipelines are, for `logbus pipeline` and `logbus window`: from the ledger, and from the broker if it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from logbus import errors, model
from logbus.cli import options, output
from logbus.cli.window_views import behind_text
from logbus.formatting import many
from logbus.kafka import client, topics
from logbus.loads.ledger import Ledger
from logbus.status.ledger_totals import PipelineFacts, read_windows
from logbus.windows.missing import Gap, behind, empty

NO_PIPELINE = "no pipeline is registered: `logbus pipeline register` registers one, and so does the first run of a DAG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A pipeline, how many windows it has, and what is missing between and after them."""

    pipeline: model.Pipeline
    facts: PipelineFacts
    gaps: Sequence[Gap]
    note: str | None = None  # what is missing in `gaps`, and why

    @property
    def is_known(self) -> bool:
        """Whether the broker has reported how far the log reaches."""
        return self.note is None

    @property
    def windows(self) -> int:
        return sum(self.facts.windows.values())

    @property
    def loaded(self) -> int:
        return self.facts.windows[model.WindowState.LOADED] + self.audited

    @property
    def audited(self) -> int:
        return self.facts.windows[model.WindowState.AUDITED]

    @property
    def loaded_up_to(self) -> datetime | None:
        return self.facts.loaded_until

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        pipeline = self.pipeline
        return {
            **{name: getattr(pipeline, name) for name in ("name", "topic", "table", "parse", "isolation_level")},
            "interval_seconds": pipeline.interval.total_seconds(),
            "lateness_seconds": pipeline.lateness.total_seconds(),
            "starts_at": pipeline.starts_at and model.instant_text(pipeline.starts_at),
            "settings": dict(pipeline.settings),
            "windows": self.windows,
            "loaded": self.loaded,
            "audited": self.audited,
            "loaded_up_to": self.loaded_up_to and model.instant_text(self.loaded_up_to),
            "behind": behind(self.gaps) if self.is_known else None,
            "empty": empty(self.gaps) if self.is_known else None,
            "note": self.note,
        }

    def row(self) -> tuple[str, ...]:
        """For the table of pipelines."""
        pipeline = self.pipeline
        starts = model.instant_text(pipeline.starts_at) if pipeline.starts_at else "earliest"
        numbers = map(str, (self.windows, self.loaded, self.audited))
        up_to = model.instant_text(self.loaded_up_to) if self.loaded_up_to else "-"
        late = str(behind(self.gaps)) if self.is_known else "?"
        return (pipeline.name, pipeline.topic, pipeline.table, pipeline.parse, starts, *numbers, up_to, late)

    def lines(self) -> Iterator[str]:
        """Everything, line by line."""
        pipeline = self.pipeline
        yield f"pipeline {pipeline.name}: topic {pipeline.topic} into {pipeline.table}, parsed as {pipeline.parse}"
        starts = model.instant_text(pipeline.starts_at) if pipeline.starts_at else "the earliest record"
        yield f"  windows of {pipeline.interval} from {starts}, open {pipeline.lateness} for late records"
        yield f"  {pipeline.isolation_level}"
        yield from (f"  {name}: {value}" for name, value in sorted(pipeline.settings.items()))
        up_to = f", up to {model.instant_text(self.loaded_up_to)}" if self.loaded_up_to else ""
        yield f"  {many(self.windows, 'window')}, {self.loaded:,} loaded{up_to}, {self.audited:,} audited"
        yield f"  {behind_text(pipeline, self.gaps)}" if self.is_known else "  how far behind is not known"


class ProgressView:
    """Asks the broker, until it fails to answer once (`unreachable` is then the error). `note` says what the last gaps lack
    because of that."""

    def __init__(self, ledger: Ledger, client_config: Mapping[str, Any]) -> None:
        self.ledger = ledger
        self.log = topics.Topics(
            client.Client.for_question(client_config)
        )  # a look at the ledger must not wait half a minute for it
        self.facts = read_windows(ledger.engine)
        self.note: str | None = None
        self.unreachable: errors.BrokerUnavailable | None = None

    def progress(self, pipeline: model.Pipeline) -> Progress:
        gaps = self.gaps(pipeline)
        return Progress(pipeline=pipeline, facts=self.facts[pipeline.name], gaps=gaps, note=self.note)

    def gaps(self, pipeline: model.Pipeline, since: datetime | None = None, until: datetime | None = None) -> Sequence[Gap]:
        """Closed windows that are not loaded; without the broker only those that the ledger shows."""
        if self.unreachable is None:
            self.note = None
            try:
                return self.ledger.gaps(pipeline.name, self.log, options.clock(), since, until)
            except errors.LogbusError as error:
                self.unreachable = error if isinstance(error, errors.BrokerUnavailable) else None
                self.note = f"hours that are not frozen yet are not counted: {error}"
        return self.ledger.gaps(pipeline.name, None, options.clock(), since, until)

    def raise_unreachable(self) -> None:
        """Called at a command's end: what the ledger shows has been printed by then, and it is not complete."""
        if self.unreachable is not None:
            output.echo_err("hours that are not frozen yet are missing here:")
            raise self.unreachable
