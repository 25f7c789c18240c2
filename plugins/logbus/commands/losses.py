"""What `logbus pipeline rebase` and `logbus window accept-loss` print about records that are gone."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from logbus.commands import options, output
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.accepted_losses import loss_text
from logbus.ledger.rebasing import Rebase
from logbus.model import Interval, instant_text
from logbus.wording import many

SHOWN_MAX = 24  # hours named one by one


def rebase_lines(name: str, done: Rebase | None) -> Iterator[str]:
    """What a rebase did, and which hours have to be given up by name."""
    if done is None:
        yield f"pipeline {name} is on its topic as it was: nothing to do"
        return
    yield f"pipeline {name} continues with topic {done.pipeline.topic} as it is now; what is loaded stays"
    hours = list(done.hours())
    if hours:
        yield f"records may be missing from {named(hours)}"
    elif done.since is None:
        yield f"records may be missing from every hour before {instant_text(done.until)}"
    if done.unloaded:
        yield f"records are missing from what was frozen and not loaded: {named(done.unloaded)}"
    if hours or done.unloaded or done.since is None:
        yield "these are refused until their loss is accepted by name:"
        yield f"    logbus window accept-loss --pipeline {name} HOUR... --reason TEXT"
    if done.again:
        yield f"records may be loaded a second time, since they cannot be told from those that are gone: {', '.join(done.again)}"


def named(hours: Sequence[Interval]) -> str:
    starts = [instant_text(hour.start) for hour in hours]
    return f"{many(len(starts), 'window')}: {', '.join(starts) if len(starts) <= SHOWN_MAX else f'{starts[0]} .. {starts[-1]}'}"


@click.command("accept-loss")
@options.pipeline_option
@click.argument("starts", type=options.Instant(), nargs=-1, required=True)
@click.option("--reason", required=True, help="Why it is accepted; kept with the window, and shown forever.")
@click.option("--by", help="Who accepts it; by default the user and machine this runs as.")
@options.warehouse_option
@options.with_client
def accept_loss(
    pipeline_name: str, starts: Sequence[datetime], reason: str, by: str | None, warehouse_url: str, config: Mapping[str, Any]
) -> None:
    """Accept that records are missing from the windows that begin at STARTS: what is left can then be loaded and audited.

    They are never called exact: every audit says who accepted the loss, when and why.
    """
    ledger, log = options.open_ledger(warehouse_url), Topics(Client.of_a_command(config))
    length = ledger.pipeline(pipeline_name).interval
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    for start in starts:
        known = ledger.windows(pipeline_name, start, start)
        interval = known[0].interval if known else Interval(start, start + length)
        window = ledger.accept_loss(pipeline_name, interval, log, options.clock(), by=who, reason=reason)
        left = many(window.record_count, "record")
        output.tell(f"{instant_text(start)} {left} left; loss accepted {loss_text(window.loss_accepted or {})}")
