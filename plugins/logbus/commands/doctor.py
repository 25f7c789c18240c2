"""`logbus doctor`: what is not as it should be, and what to type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from logbus.commands import options
from logbus.errors import WarehouseUnavailable
from logbus.warehouse.engine import connect
from logbus.windows import checkup
from logbus.windows.checkup import Finding, Severity
from logbus.windows.ledger import Ledger
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision

# Somebody waits for the answer; a broker that is there answers in milliseconds.
BROKER_SECONDS_MAX = 5.0


@click.command("doctor")
@click.option("--pipeline", "pipeline_name", help="Look at this one only; by default at all.")
@click.option("--clean", is_flag=True, help="End attempts without a sign of life, drop staging tables nobody owns.")
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
def command(
    pipeline_name: str | None, clean: bool, warehouse_url: str, bootstrap: str, client_config: Path | None, as_json: bool
) -> None:
    """Check connections, attempts, leftovers and the chains of windows; say what to type. Status 1 where something is wrong."""
    log = LogOffsets(options.client_config(bootstrap, client_config), timeout_seconds=BROKER_SECONDS_MAX)
    findings = list(examine(warehouse_url, log, pipeline_name, clean))
    if as_json:
        click.echo(json.dumps([finding.summary() for finding in findings]))
    else:
        for finding in findings:
            click.echo(f"{finding.severity}: {finding.subject}: {finding.message}\n    {finding.advice}")
        if not findings:
            click.echo("nothing is wrong")
    if any(finding.severity is Severity.ERROR for finding in findings):
        click.get_current_context().exit(1)


def examine(warehouse_url: str, log: LogOffsets, pipeline_name: str | None, clean: bool) -> Iterator[Finding]:
    """Findings, the first obstacle first."""
    try:
        engine = connect(warehouse_url)
    except WarehouseUnavailable as problem:
        yield checkup.error("warehouse", str(problem), "logbus doctor --warehouse URL, of a PostgreSQL that runs")
        return
    revision = ledger_revision(engine)
    if revision != REVISION and not clean:
        message = f"the ledger is at version {revision or 'none'}, this logbus makes {REVISION}"
        yield checkup.warning("warehouse", message, "logbus ledger upgrade (the next task or command does it, too)")
        return
    create_ledger(engine)
    ledger = Ledger(engine)
    if clean:
        tell_cleaned(checkup.clean(ledger, options.clock()))
    pipelines = [ledger.pipeline(pipeline_name)] if pipeline_name else ledger.pipelines()
    if not pipelines:
        yield checkup.note(
            "ledger", "no pipeline is registered", "logbus pipeline register NAME --topic ... --table ... --parse ..."
        )
    yield from checkup.check_all(ledger, log, pipelines, options.clock())


def tell_cleaned(done: checkup.Cleaned) -> None:
    for name in done.ended:
        click.echo(f"ended: {name}", err=True)
    for name in done.dropped:
        click.echo(f"dropped: {name}", err=True)
