"""`logbus doctor`: what is wrong, and what to type; `logbus lag`: how far pipelines are behind, in hours of the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from logbus import errors, formatting, model
from logbus.cli import options, output
from logbus.cli.pipeline import NO_PIPELINE
from logbus.kafka import client, exact_reader, topics
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.completeness import elsewhere_notes
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.status import checks, cluster_checks, installation_checks, ledger_checks
from logbus.status.lag import Lag, Measure, lag_of
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision

AREAS: Mapping[str, checks.Check] = {
    "versions": installation_checks.check_versions,
    "java": installation_checks.check_java,
    "spark": installation_checks.check_spark,
    "spark-submit": installation_checks.check_spark_submit,
    "airflow": installation_checks.check_airflow,
    "broker": checks.check_broker,
    "cluster": cluster_checks.check_cluster,
    "disk": checks.check_disk,
    "clocks": checks.check_clocks,
}
PIPELINES = "pipelines"  # checks of the ledger and the broker; the area that --pipeline and --clean apply to
COLOURS: Mapping[checks.Severity, str] = {
    checks.Severity.ERROR: "red",
    checks.Severity.WARNING: "yellow",
    checks.Severity.OK: "green",
}


@click.command("doctor")
@click.option(
    "--pipeline", "pipeline_name", metavar="NAME", shell_complete=options.complete_pipelines, help="Check only this pipeline."
)
@click.option("--only", "areas", multiple=True, type=click.Choice([*AREAS, PIPELINES]), help="Check only this; may be repeated.")
@click.option("--clean", is_flag=True, help="End attempts without a heartbeat, drop staging tables without an owner.")
@options.warehouse_if_named_option
@options.with_broker
@options.json_option
def doctor_command(
    pipeline_name: str | None,
    areas: Sequence[str],
    clean: bool,
    warehouse_url: str | None,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Check Java, Spark, Airflow, versions, broker, disks, clocks, and the chains of windows; say how to fix what is wrong.

    Nothing is changed without --clean. Exits with status 5 if an error is found.
    """
    log = Topics(Client.for_question(config))
    checks_by_area: dict[str, checks.Check] = {
        **AREAS,
        PIPELINES: partial(examine, warehouse_url=warehouse_url, log=log, pipeline_name=pipeline_name, clean=clean),
    }
    chosen = {name: check for name, check in checks_by_area.items() if not areas or name in areas}
    findings = checks.run_checks(chosen, checks.Machine(clock=options.clock, client_config=config, warehouse_url=warehouse_url))
    tell_findings(findings, as_json)
    if any(finding.severity is checks.Severity.ERROR for finding in findings):
        click.get_current_context().exit(errors.ExitCode.CHECK_FAILED)


def tell_findings(findings: Sequence[checks.Finding], as_json: bool) -> None:
    if as_json:
        output.show_json([finding.summary() for finding in findings])
        return
    for finding in findings:
        severity = output.Coloured(finding.severity, COLOURS.get(finding.severity, ""))
        output.echo(f": {finding.subject}: {finding.message}", mark=severity)
        if finding.advice:
            output.echo(f"    {finding.advice}")
    if not any(finding.severity in (checks.Severity.ERROR, checks.Severity.WARNING) for finding in findings):
        output.echo("no problem found")


def examine(
    machine: checks.Machine, *, warehouse_url: str | None, log: Topics, pipeline_name: str | None, clean: bool
) -> Iterator[checks.Finding]:
    """Findings from the ledger and the broker; stops at the first obstacle."""
    if warehouse_url is None:
        advice = "logbus doctor --warehouse URL, or export LOGBUS_WAREHOUSE_URL; `logbus demo` starts one of its own"
        yield checks.warning("warehouse", "none is named, so the ledger is not checked", advice)
        return
    try:
        engine = connect(warehouse_url)
    except errors.WarehouseUnavailable as problem:
        yield checks.error("warehouse", str(problem), "logbus doctor --warehouse URL, of a running PostgreSQL")
        return
    revision = ledger_revision(engine)
    if revision != REVISION and not clean:
        message = f"the ledger is at version {revision or 'none'}, this logbus needs {REVISION}"
        yield checks.warning("warehouse", message, "logbus ledger upgrade (the next task or command does it, too)")
        return
    create_ledger(engine)
    ledger = Ledger(engine)
    if clean:
        tell_cleaned(ledger_checks.clean(ledger, machine.clock()))
    pipelines = [ledger.pipeline(pipeline_name)] if pipeline_name else ledger.pipelines()
    if not pipelines:
        yield checks.note(
            "ledger", "no pipeline is registered", "logbus pipeline register NAME --topic ... --table ... --parse ..."
        )
    yield from ledger_checks.check_all(ledger, log, pipelines, machine.clock())


def tell_cleaned(done: ledger_checks.Cleaned) -> None:
    for name in done.ended:
        output.echo_err(f"ended: {name}")
    for name in done.dropped:
        output.echo_err(f"dropped: {name}")


# `logbus lag`: how far pipelines are behind, in hours of the schedule.


DAY = timedelta(days=1)


@click.command("lag")
@click.option(
    "--pipeline",
    "pipeline_names",
    multiple=True,
    metavar="NAME",
    shell_complete=options.complete_pipelines,
    help="A registered pipeline; may be repeated. By default all.",
)
@options.warehouse_option
@options.with_client
@options.json_option
@click.option("--bytes", "counts_bytes", is_flag=True, help="Count bytes too, by reading every record that is behind.")
@click.option(
    "--fail-above",
    "hours_max",
    type=options.Hours(),
    metavar="HOURS",
    help="Exit with status 5 if a pipeline is more hours behind, or by an unknown number.",
)
def lag_command(
    pipeline_names: tuple[str, ...],
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
    counts_bytes: bool,
    hours_max: float | None,
) -> None:
    """Show closed hours that are not loaded, the oldest of them, their records, and when retention would delete them."""
    ledger, now = options.open_ledger(warehouse_url), options.clock()
    names = pipeline_names or [pipeline.name for pipeline in ledger.pipelines()]
    log, measure = topics.Topics(client.Client.for_question(config)), reader(config) if counts_bytes else None
    lags = [lag_or_problem(ledger, log, name, now, measure) for name in names]
    show(lags, now, as_json)
    if not as_json:
        with ledger.engine.connect() as connection:
            for note in elsewhere_notes(connection, names):
                output.echo_err(f"note: {note}")
    check(lags, hours_max)


def show(lags: list[Lag], now: datetime, as_json: bool) -> None:
    if not lags:
        output.echo_err(NO_PIPELINE)
    if as_json:
        output.show_json([lag.summary(now) for lag in lags])
        return
    output.show(lag_table(lags, now))
    for lag in lags:
        if lag.problem:
            output.echo_err(f"{lag.pipeline}: {lag.problem}")
        if lag.expiry_problem:
            output.echo_err(f"note: {lag.pipeline}: when retention deletes its records is unknown: {lag.expiry_problem}")


def lag_or_problem(ledger: Ledger, log: topics.Topics, name: str, now: datetime, measure: Measure | None) -> Lag:
    """A pipeline whose topic cannot be read is one line with its problem, and does not hide the others."""
    try:
        return lag_of(ledger.engine, log, name, now, measure)
    except (errors.BrokerUnavailable, errors.PipelineUnknown):
        raise
    except errors.LogbusError as problem:
        return Lag(pipeline=name, topic=ledger.pipeline(name).topic, records_behind={}, problem=str(problem))


def check(lags: list[Lag], hours_max: float | None) -> None:
    """`Behind` names the pipelines that are further behind than that. `TopicMissing` if nothing is known of any."""
    behind = [] if hours_max is None else [lag for lag in lags if lag.problem or lag.hours_behind > hours_max]
    if behind:
        names = ", ".join(f"{lag.pipeline} ({'?' if lag.problem else lag.hours_behind})" for lag in behind)
        raise errors.Behind(f"{len(behind)} of {len(lags)} pipelines are more than {hours_max:g} hours behind: {names}")
    if lags and all(lag.problem for lag in lags):
        raise errors.TopicMissing(f"nothing is known of {', '.join(lag.pipeline for lag in lags)}: {lags[0].problem}")


def reader(config: Mapping[str, Any]) -> Measure:
    """Bytes of keys and values, as loads count them."""

    def measure(topic: str, partition: int, start: int, end: int) -> int:
        records = exact_reader.read_range(config, topic, partition, start, end, say=output.echo_err)
        shown = output.tracked(records, f"reading {topic}-{partition}", end - start)
        return sum(len(record.key() or b"") + len(record.value() or b"") for record in shown)

    return measure


def lag_table(lags: list[Lag], now: datetime) -> output.Table:
    table = output.Table(
        "pipeline",
        "topic",
        "hours behind",
        "empty hours",
        "oldest hour",
        "age",
        "records",
        "bytes",
        "in the open hour",
        "lost",
        "expires",
    )
    for lag in lags:
        if lag.problem:
            table.add_row(lag.pipeline, lag.topic, *["?"] * (len(table.names) - 2))
            continue
        table.add_row(
            lag.pipeline,
            lag.topic,
            str(lag.hours_behind),
            str(lag.hours_empty),
            model.instant_text(lag.oldest_hour) if lag.oldest_hour else "-",
            span_text(lag.age(now)),
            str(lag.records),
            "-" if lag.bytes_behind is None else str(lag.bytes_behind),
            str(lag.records_open),
            str(lag.records_lost),
            taken_text(lag, now),
        )
    return table


def taken_text(lag: Lag, now: datetime) -> str:
    """`in 3 days 4 h by retention.ms`."""
    if lag.expiry_problem:
        return "unknown"
    if lag.expires_by is None:
        return "-"
    if lag.expires_at is None:
        return f"by {lag.expires_by}, time unknown"
    return (
        f"in {span_text(lag.expires_at - now)} by {lag.expires_by}" if lag.expires_at > now else f"any moment by {lag.expires_by}"
    )


def span_text(span: timedelta | None) -> str:
    """`4:00:00`; from a day on `3 days 4 h`, without minutes and seconds."""
    if span is None:
        return "-"
    if span < DAY:
        return str(timedelta(seconds=int(span.total_seconds())))
    return f"{formatting.many(span.days, 'day')} {span.seconds // 3600} h"
