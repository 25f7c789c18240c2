"""`logbus doctor`: what is wrong, and what to type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from logbus.commands import options, output
from logbus.commands.completing import complete_pipelines
from logbus.doctor.airflow_home import check_airflow
from logbus.doctor.broker import check_broker, check_disk
from logbus.doctor.clocks import check_clocks
from logbus.doctor.looking import Check, Surroundings, look
from logbus.doctor.spark import check_jars, check_java, check_spark, check_spark_submit
from logbus.doctor.versions import check_versions
from logbus.errors import WarehouseUnavailable
from logbus.exit_codes import ExitCode
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.ledger.migrations import REVISION, create_ledger, ledger_revision
from logbus.status import checkup
from logbus.status.checkup import Finding, Severity
from logbus.warehouse.engine import connect

AREAS: Mapping[str, Check] = {
    "versions": check_versions,
    "java": check_java,
    "spark": check_spark,
    "spark-submit": check_spark_submit,
    "jars": check_jars,
    "airflow": check_airflow,
    "broker": check_broker,
    "disk": check_disk,
    "clocks": check_clocks,
}
PIPELINES = "pipelines"  # checks of the ledger and the broker; the area that --pipeline and --clean apply to
COLOURS: Mapping[Severity, str] = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green"}


@click.command("doctor")
@click.option("--pipeline", "pipeline_name", metavar="NAME", shell_complete=complete_pipelines, help="Check only this pipeline.")
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
    log = Topics(Client.of_a_question(config))
    checks: dict[str, Check] = {
        **AREAS,
        PIPELINES: partial(examine, warehouse_url=warehouse_url, log=log, pipeline_name=pipeline_name, clean=clean),
    }
    wanted = {name: check for name, check in checks.items() if not areas or name in areas}
    findings = look(wanted, Surroundings(clock=options.clock, client_config=config, warehouse_url=warehouse_url))
    tell(findings, as_json)
    if any(finding.severity is Severity.ERROR for finding in findings):
        click.get_current_context().exit(ExitCode.NOT_AS_IT_SHOULD_BE)


def tell(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        output.show_json([finding.summary() for finding in findings])
        return
    for finding in findings:
        severity = output.Coloured(finding.severity, COLOURS.get(finding.severity, ""))
        output.tell(f": {finding.subject}: {finding.message}", mark=severity)
        if finding.advice:
            output.tell(f"    {finding.advice}")
    if not any(finding.severity in (Severity.ERROR, Severity.WARNING) for finding in findings):
        output.tell("nothing is wrong")


def examine(
    around: Surroundings, *, warehouse_url: str | None, log: Topics, pipeline_name: str | None, clean: bool
) -> Iterator[Finding]:
    """Findings from the ledger and the broker; stops at the first obstacle."""
    if warehouse_url is None:
        advice = "logbus doctor --warehouse URL, or export LOGBUS_WAREHOUSE_URL; `logbus demo` starts one of its own"
        yield checkup.warning("warehouse", "none is named, so the ledger is not checked", advice)
        return
    try:
        engine = connect(warehouse_url)
    except WarehouseUnavailable as problem:
        yield checkup.error("warehouse", str(problem), "logbus doctor --warehouse URL, of a running PostgreSQL")
        return
    revision = ledger_revision(engine)
    if revision != REVISION and not clean:
        message = f"the ledger is at version {revision or 'none'}, this logbus needs {REVISION}"
        yield checkup.warning("warehouse", message, "logbus ledger upgrade (the next task or command does it, too)")
        return
    create_ledger(engine)
    ledger = Ledger(engine)
    if clean:
        tell_cleaned(checkup.clean(ledger, around.clock()))
    pipelines = [ledger.pipeline(pipeline_name)] if pipeline_name else ledger.pipelines()
    if not pipelines:
        yield checkup.note(
            "ledger", "no pipeline is registered", "logbus pipeline register NAME --topic ... --table ... --parse ..."
        )
    yield from checkup.check_all(ledger, log, pipelines, around.clock())


def tell_cleaned(done: checkup.Cleaned) -> None:
    for name in done.ended:
        output.say(f"ended: {name}")
    for name in done.dropped:
        output.say(f"dropped: {name}")
