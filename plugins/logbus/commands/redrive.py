"""`logbus redrive`: parse dead letters again; a dry run unless --execute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from logbus.commands import options, output
from logbus.model import FrozenWindow, instant_text
from logbus.parsing import parser_for
from logbus.warehouse.redrive import Redrive, Redriven


@click.command("redrive")
@options.pipeline_option
@click.option("--window", "starts", type=options.Instant(), multiple=True, help="Start of a window; may be repeated.")
@options.since_option
@options.until_option
@options.execute_option
@options.warehouse_option
@options.json_option
def command(
    pipeline_name: str,
    starts: Sequence[datetime],
    since: datetime | None,
    until: datetime | None,
    is_executed: bool,
    warehouse_url: str,
    as_json: bool,
) -> None:
    """Parse the dead letters of loaded windows again, with the parser and the settings that the pipeline has now."""
    if starts and (since or until):
        raise click.UsageError("name windows by --window, or a span by --since and --until; not both")
    ledger = options.open_ledger(warehouse_url)
    pipeline = ledger.pipeline(pipeline_name)
    redrive = Redrive(
        engine=ledger.engine,
        pipeline=pipeline,
        parser=parser_for(pipeline.parse, pipeline.settings),
        run_id="command line",
        now=options.clock,
    )
    redrive.refuse_other_sinks()
    windows = chosen(redrive.windows(since, until), starts)
    act = redrive.run if is_executed else redrive.plan
    outcomes = [act(window) for window in windows]
    if as_json:
        output.show_json({"executed": is_executed, "windows": [outcome.summary() for outcome in outcomes]})
    else:
        tell(outcomes, is_executed)


def chosen(windows: Sequence[FrozenWindow], starts: Sequence[datetime]) -> list[FrozenWindow]:
    """The windows with dead letters; of those named, if any are."""
    return [window for window in windows if not starts or window.interval.start in starts]


def tell(outcomes: Sequence[Redriven], executed: bool) -> None:
    if not outcomes:
        output.tell("these windows have no dead letters")
        return
    table = output.Table("window", "dead letters", "loaded" if executed else "would load", "stay", "why")
    for outcome in outcomes:
        why = ", ".join(f"{name} {count}" for name, count in sorted(outcome.errors.items(), key=lambda found: -found[1]))
        numbers = map(str, (outcome.tried, outcome.loaded, outcome.dead_lettered))
        table.add_row(instant_text(outcome.start), *numbers, why or "-")
    output.show(table)
    if not executed:
        output.say("dry run: nothing was changed; --execute does it; audit the windows afterwards (logbus window audit)")
