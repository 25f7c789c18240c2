"""`logbus doctor`: what is wrong, and what to type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from logbus import errors, exit_codes
from logbus.cli import completion, options, output
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.status import broker_checks, checks, cluster_checks, installation_checks, ledger_checks
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision

AREAS: Mapping[str, checks.Check] = {
    "versions": installation_checks.check_versions,
    "java": installation_checks.check_java,
    "spark": installation_checks.check_spark,
    "spark-submit": installation_checks.check_spark_submit,
    "airflow": installation_checks.check_airflow,
    "broker": broker_checks.check_broker,
    "cluster": cluster_checks.check_cluster,
    "disk": broker_checks.check_disk,
    "clocks": broker_checks.check_clocks,
}
PIPELINES = "pipelines"  # checks of the ledger and the broker; the area that --pipeline and --clean apply to
COLOURS: Mapping[checks.Severity, str] = {
    checks.Severity.ERROR: "red",
    checks.Severity.WARNING: "yellow",
    checks.Severity.OK: "green",
}


@click.command("doctor")
@click.option(
    "--pipeline", "pipeline_name", metavar="NAME", shell_complete=completion.complete_pipelines, help="Check only this pipeline."
)
@click.option("--only", "areas", multiple=True, type=click.Choice([*AREAS, PIPELINES]), help="Check only this; may be repeated.")
@click.option("--clean", is_flag=True, help="End attempts without a heartbeat, drop staging tables without an owner.")
@options.warehouse_if_named_option
@options.with_broker
@options.json_option
def command(
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
    tell(findings, as_json)
    if any(finding.severity is checks.Severity.ERROR for finding in findings):
        click.get_current_context().exit(exit_codes.ExitCode.CHECK_FAILED)


def tell(findings: Sequence[checks.Finding], as_json: bool) -> None:
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
