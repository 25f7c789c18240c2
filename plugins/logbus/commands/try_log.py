"""`logbus try FILE`: what a clock and a parser would make of a log, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import click

from logbus.collector.clocks import TimeOptions
from logbus.collector.proposal import LogProposal, commands, dag, propose, shown, summary
from logbus.collector.ship import LINE_BYTES_MAX
from logbus.collector.stamped_lines import day_text
from logbus.commands import options, output
from logbus.errors import UserError
from logbus.model import instant_text
from logbus.wording import many

VALUE_CHARACTERS = 100


@click.command("try")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--parse", metavar="NAME", help="Try only this parser; by default the one that fits is proposed.")
@click.option("--settings", default="{}", help='Settings of that parser, as JSON: {"fields": ["time", "user"]}.')
@click.option("--time-format", metavar="FORMAT", help="How a line's time is written: '%d.%m.%Y %H:%M:%S'.")
@click.option("--time-field", metavar="NAME", help="The field of a JSON or logfmt line that holds its time.")
@click.option("--timezone", "zone", type=options.TimeZone(), help="The zone of times that are written without one.")
@click.option("--accept-times", is_flag=True, help="Times that lie months from when the file was last written are right.")
@click.option("--join-lines", is_flag=True, help="Lines without a time of their own belong to the line before.")
@options.json_option
def command(
    file: Path,
    parse: str | None,
    settings: str,
    time_format: str | None,
    time_field: str | None,
    zone: ZoneInfo | None,
    accept_times: bool,
    join_lines: bool,
    as_json: bool,
) -> None:
    """Show how the first thousand lines of FILE would be read: their times, their columns, and what to type to load them.

    Nothing is sent, and neither a broker nor a warehouse is needed.
    """
    times = TimeOptions(format_of=time_format, field=time_field, zone=zone, accepts_times=accept_times)
    named = [("--time-format", time_format), ("--time-field", time_field), ("--timezone", zone and str(zone))]
    words = [word for option, value in named if value for word in (option, str(value))]
    words += ["--accept-times"] if accept_times else []
    found = propose(file, times, LINE_BYTES_MAX, joins=join_lines, parse=parse, settings=options.parse_settings(settings))
    if as_json:
        output.show_json(summary(found, words))
    else:
        show(found, words)


def show(found: LogProposal, words: list[str]) -> None:
    if not found.records:
        output.tell(f"{found.path} holds no lines yet")
        return
    for sentence in (times_of(found), parser_of(found)):
        output.tell(*sentence.split("\n"))
    show_samples(found)
    if found.trouble is not None:
        raise UserError(found.trouble)
    output.tell("", "To load it:", "")
    for line in commands(found, words):
        output.tell(f"    {line}")
    output.tell("", "Or every hour with Airflow: the first of these commands, and this file among its DAGs:", "")
    for line in dag(found).splitlines():
        output.tell(f"    {line}".rstrip())


def times_of(found: LogProposal) -> str:
    clock = " and ".join(found.clock.names) or "not understood"
    span = f", from {instant_text(found.first)} to {instant_text(found.last)}" if found.first and found.last else ""
    sentences = [f"time      {clock}: {found.dated:,} of {many(found.records, 'record')}{span}"]
    if found.zoneless:
        zone = found.clock.around.zone
        sentences.append(f"          written without a zone and taken in {zone}: --timezone names another, such as Europe/Berlin")
    if found.is_damaged:
        sentences.append("          the compressed file is cut off: only these can be read")
    if found.ahead:
        sentences.append(
            f"          {many(found.ahead, 'record')} more than an hour ahead of now: a clock is wrong, or it is local time "
            "without a zone, which --timezone names"
        )
    if found.months_away:
        few = many(sum(found.months_away.values()), "record")
        sentences.append(
            f"          warning: {few} months away from the others, the first on {day_text(min(found.months_away))}: a date in "
            "a text was taken for a time, or a clock was wrong"
        )
    if found.joins and found.continued:
        lines = many(found.continued, "line")
        sentences.append(f"          {lines} that continue the one before are joined to it (--join-lines)")
    return "\n".join(sentences)


def parser_of(found: LogProposal) -> str:
    others = ", ".join(f"{one.parse} {one.parsed:,}" for one in found.others if one.parsed)
    lines = [f"parse     {found.trial.parse}: {found.trial.parsed:,} of {many(found.records, 'record')}"]
    if others:
        lines.append(f"          others: {others}")
    if found.trial.errors:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.trial.errors.items())
        lines.append(f"          dead letters: {kinds}")
    return "\n".join(lines)


def show_samples(found: LogProposal) -> None:
    """Column by column: rows of many columns are wider than any terminal."""
    if not found.trial.samples:
        return
    table = output.Table("column", *(f"record {number}" for number in range(1, len(found.trial.samples) + 1)))
    for name in found.trial.columns:
        table.add_row(name, *(cell(one[name]) for one in found.trial.samples))
    output.tell("")
    output.show(table)


def cell(value: object) -> str:
    text = "" if value is None else str(shown(value))
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + "..."
