"""`logbus pipeline`: register and list pipelines, continue after a topic was recreated, correct or undo a mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from logbus import errors, model, pipeline_definition
from logbus.cli import options, output, window_views
from logbus.formatting import many
from logbus.kafka import client, topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.pipeline_settings import SCHEMA_PARSERS
from logbus.status.ledger_facts import PipelineFacts, read_windows
from logbus.windows import missing, recovery, registration, rows
from logbus.windows.registration import PipelineRegistration

NO_PIPELINE = "no pipeline is registered: `logbus pipeline register` registers one, and so does the first run of a DAG"


@click.group("pipeline")
def command() -> None:
    """Pipelines: which topic is loaded into which table, and how."""


@command.command("register")
@click.argument("name")
@click.option("--topic", required=True, metavar="NAME", shell_complete=options.complete_topics, help="The topic that is loaded.")
@click.option("--table", required=True, help="Target table, as table or schema.table.")
@click.option(
    "--parse",
    required=True,
    help="How values become rows: combined, csv, json, lines, logfmt, nginx_json, raw, regex, syslog, or a parser of your own, "
    "module:function.",
)
@click.option("--every", default="1h", show_default=True, metavar="LENGTH", help="The length of a window: 15m, 1h, 6h, 1d.")
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    metavar="NAME",
    help="Windows of a day begin at its midnights: Europe/Berlin.",
)
@click.option(
    "--lateness-minutes", type=click.FloatRange(min=0), default=5.0, show_default=True, help="How long an hour stays open."
)
@click.option("--starts-at", type=options.Instant(), help="Where the first window begins; by default at the earliest record.")
@click.option("--settings", default="{}", help='JSON: {"columns": {"host": "text"}, "max_errors": 5, "offset_gaps": false}.')
@click.option("--change", "may_change", is_flag=True, help="Change a pipeline that is registered with other values.")
@options.warehouse_option
@options.with_client
def register(
    name: str,
    every: str,
    lateness_minutes: float,
    settings: str,
    may_change: bool,
    warehouse_url: str,
    config: Mapping[str, Any],
    **fields: Any,
) -> None:
    """Register NAME, once. Registering it again with other values shows the difference; --change applies it."""
    interval, lateness = pipeline_definition.length_of(name, every), timedelta(minutes=lateness_minutes)
    pipeline = model.Pipeline(
        name=name, interval=interval, lateness=lateness, settings=options.parse_settings(settings), **fields
    )
    pipeline_definition.check_pipeline(pipeline)
    # A parser of the user's own may be installed only where Spark runs; that of values with schemas gets its columns from these.
    if not pipeline_definition.is_own_parser(pipeline.parse) and pipeline.parse not in SCHEMA_PARSERS:
        from logbus.parsing import parser_for

        parser_for(pipeline.parse, pipeline.settings)  # refuses a filter over columns that the parser does not have, for example
    log, ledger = topics.Topics(client.Client.for_command(config)), options.open_ledger(warehouse_url)
    done = ledger.define(pipeline, log, options.clock(), may_change=may_change)
    tell_registration(done)
    if done.changes and (dags := registration.standing_for_another(ledger.engine, done.pipeline)):
        output.echo_err(
            f"note: {', '.join(dags)} defines {name} differently, and its next run sets it back: change it there, too"
        )


def tell_registration(done: PipelineRegistration) -> None:
    pipeline = done.pipeline
    verb = "" if done.is_new else " is changed:" if done.changes else " is already registered:"
    output.echo(f"pipeline {pipeline.name}{verb} loads topic {pipeline.topic} into table {pipeline.table}")
    for change in done.changes:
        output.echo(f"  {change}")


@command.command("ls")
@options.warehouse_option
@options.with_client
@options.json_option
def list_pipelines(warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """List the registered pipelines and what they have loaded."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, config)
    pipelines = [view.progress(pipeline) for pipeline in ledger.pipelines()]
    if as_json:
        output.show_json([progress.summary() for progress in pipelines])
        view.raise_unreachable()
        return
    table = output.Table(
        "pipeline", "topic", "table", "parse", "starts", "windows", "loaded", "audited", "loaded up to", "behind"
    )
    for progress in pipelines:
        table.add_row(*progress.row())
    output.show(table)
    if not pipelines:
        output.echo_err(NO_PIPELINE)
    view.raise_unreachable()
    for progress in pipelines:
        if progress.note:
            output.echo_err(f"note: {progress.pipeline.name}: {progress.note}")


@command.command("show")
@click.argument("name", shell_complete=options.complete_pipelines)
@options.warehouse_option
@options.with_client
@options.json_option
def show(name: str, warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """Show everything about the pipeline NAME: how it is registered, what it has loaded."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, config)
    progress = view.progress(ledger.pipeline(name))
    if as_json:
        gaps, dags = [gap.summary() for gap in progress.gaps], definitions_of_dags(ledger, name)
        output.show_json({**progress.summary(), "gaps": gaps, "dags": dags}, indent=2)
        view.raise_unreachable()
        return
    output.echo(*progress.lines())
    for dag_id, otherwise in definitions_of_dags(ledger, name).items():
        output.echo(f"  DAG {dag_id}" + (f" defined it differently: {otherwise}" if otherwise else ""))
    view.raise_unreachable()
    if progress.note:
        output.echo_err(f"note: {progress.note}")


def definitions_of_dags(ledger: Ledger, name: str) -> dict[str, str | None]:
    """The DAGs of the pipeline, and how each one's definition differed when it last ran."""
    registered = rows.definition_of(ledger.registered(name))
    with ledger.engine.connect() as connection:
        given = registration.definitions_by_dag(connection, name)
    return {
        dag_id: rows.in_words(rows.differences(registered, definition)) or None if definition else None
        for dag_id, definition in given.items()
    }


@command.command("rebase")
@click.argument("name", shell_complete=options.complete_pipelines)
@options.warehouse_option
@options.with_client
@click.option("--other-cluster", is_flag=True, help="The topic has moved to another cluster for good.")
def rebase(name: str, warehouse_url: str, config: Mapping[str, Any], other_cluster: bool) -> None:
    """Continue NAME after its topic was deleted and recreated, or holds another log than its windows were frozen on.

    What is loaded stays. The hours that may have lost records are printed; each is refused until its loss is accepted.
    """
    log = topics.Topics(client.Client.for_command(config))
    done = recovery.rebase(connect(warehouse_url), name, log, options.clock(), other_cluster=other_cluster)
    output.echo(*rebase_lines(name, done))


@command.command("forget-dag")
@click.argument("name", shell_complete=options.complete_pipelines)
@click.argument("dag_id")
@options.warehouse_option
def forget_dag(name: str, dag_id: str, warehouse_url: str) -> None:
    """Forget how DAG_ID, which no longer exists, defined the pipeline NAME."""
    registration.forget(options.open_ledger(warehouse_url).engine, name, dag_id)
    output.echo(f"forgotten: how DAG {dag_id} defines pipeline {name}, until it runs again")


@command.command("delete")
@click.argument("name", shell_complete=options.complete_pipelines)
@options.execute_option
@options.warehouse_option
@options.json_option
def delete(name: str, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Delete NAME, which was registered by mistake: nothing may be loaded. Its topic and its table stay as they are."""
    removed = registration.remove(options.open_ledger(warehouse_url).engine, name, options.clock(), is_executed=is_executed)
    if as_json:
        output.show_json({"executed": is_executed, **asdict(removed)})
        return
    done = "deleted" if is_executed else "would be deleted"
    output.echo(
        f"{done}: pipeline {name}, {many(removed.windows, 'window')} frozen and not loaded, {many(removed.attempts, 'attempt')}"
    )
    if removed.dag_ids:
        output.echo_err(f"note: {', '.join(removed.dag_ids)} registers it again when it runs next: remove it first")
    if not is_executed:
        output.echo_err("dry run: nothing was changed; --execute does it")


NAMED_MAX = 24  # hours named one by one


def rebase_lines(name: str, done: recovery.Rebase | None) -> Iterator[str]:
    """What a rebase did, and which hours have to be given up by name."""
    if done is None:
        yield f"pipeline {name} is on its topic as it was: nothing to do"
        return
    yield f"pipeline {name} continues with topic {done.pipeline.topic} as it is now; what is loaded stays"
    hours = list(done.hours())
    if hours:
        yield f"records may be missing from {named(hours)}"
    elif done.since is None:
        yield f"records may be missing from every hour before {model.instant_text(done.until)}"
    if done.unloaded:
        yield f"records are missing from what was frozen and not loaded: {named(done.unloaded)}"
    if hours or done.unloaded or done.since is None:
        yield "these are refused until their loss is accepted by name:"
        yield f"    logbus window accept-loss --pipeline {name} HOUR... --reason TEXT"
    if done.again:
        again = ", ".join(done.again)
        yield f"records may be loaded a second time, since they cannot be distinguished from those that are gone: {again}"


def named(hours: Sequence[model.Interval]) -> str:
    starts = [model.instant_text(hour.start) for hour in hours]
    return f"{many(len(starts), 'window')}: {', '.join(starts) if len(starts) <= NAMED_MAX else f'{starts[0]} .. {starts[-1]}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A pipeline, how many windows it has, and what is missing between and after them."""

    pipeline: model.Pipeline
    facts: PipelineFacts
    gaps: Sequence[missing.Gap]
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
            "timezone": pipeline.timezone,
            "lateness_seconds": pipeline.lateness.total_seconds(),
            "starts_at": pipeline.starts_at and model.instant_text(pipeline.starts_at),
            "settings": dict(pipeline.settings),
            "windows": self.windows,
            "loaded": self.loaded,
            "audited": self.audited,
            "loaded_up_to": self.loaded_up_to and model.instant_text(self.loaded_up_to),
            "behind": missing.behind(self.gaps) if self.is_known else None,
            "empty": missing.empty(self.gaps) if self.is_known else None,
            "note": self.note,
        }

    def row(self) -> tuple[str, ...]:
        """For the table of pipelines."""
        pipeline = self.pipeline
        starts = model.instant_text(pipeline.starts_at) if pipeline.starts_at else "earliest"
        numbers = map(str, (self.windows, self.loaded, self.audited))
        up_to = model.instant_text(self.loaded_up_to) if self.loaded_up_to else "-"
        late = str(missing.behind(self.gaps)) if self.is_known else "?"
        return (pipeline.name, pipeline.topic, pipeline.table, pipeline.parse, starts, *numbers, up_to, late)

    def lines(self) -> Iterator[str]:
        """Everything, line by line."""
        pipeline = self.pipeline
        yield f"pipeline {pipeline.name}: topic {pipeline.topic} into {pipeline.table}, parsed as {pipeline.parse}"
        starts = model.instant_text(pipeline.starts_at) if pipeline.starts_at else "the earliest record"
        yield f"  windows of {pipeline.grid} from {starts}, open {pipeline.lateness} for late records"
        yield f"  {pipeline.isolation_level}"
        yield from (f"  {name}: {value}" for name, value in sorted(pipeline.settings.items()))
        up_to = f", up to {model.instant_text(self.loaded_up_to)}" if self.loaded_up_to else ""
        yield f"  {many(self.windows, 'window')}, {self.loaded:,} loaded{up_to}, {self.audited:,} audited"
        yield f"  {window_views.behind_text(pipeline, self.gaps)}" if self.is_known else "  how far behind is not known"


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

    def gaps(
        self, pipeline: model.Pipeline, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[missing.Gap]:
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
