"""`logbus try` and `logbus sample`: how a log, or a topic with schemas, would be read, and a log to try things on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource

from logbus import errors, model
from logbus.cli import options, output
from logbus.formatting import many
from logbus.pipeline_settings import check_registry
from logbus.shipper import merged_lines, ship, timestamp_extractor
from logbus.shipper.proposal import LogProposal, ParserTrial, commands, dag_of, propose, shown, summary
from logbus.shipper.sample import last_closed_hour, sample_lines, write_sample

if TYPE_CHECKING:
    from logbus.shipper.proposal import TopicProposal

VALUE_CHARACTERS = 100


@click.command("try")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--topic",
    metavar="NAME",
    shell_complete=options.complete_topics,
    help="Instead of a file: the last thousand records of this topic.",
)
@click.option(
    "--registry",
    envvar="LOGBUS_REGISTRY_URL",
    show_envvar=True,
    metavar="URL",
    help="Whose schemas the values of the topic name.",
)
@click.option("--parse", metavar="NAME", help="Try only this parser; by default the one that fits is proposed.")
@click.option("--settings", default="{}", help='Settings of that parser, as JSON: {"fields": ["time", "user"]}.')
@click.option("--time-format", metavar="FORMAT", help="How a line's time is written: '%d.%m.%Y %H:%M:%S'.")
@click.option("--time-field", metavar="NAME", help="The field of a JSON or logfmt line that holds its time.")
@click.option("--timezone", "zone", type=options.TimeZone(), help="The zone of times that are written without one.")
@click.option("--accept-times", is_flag=True, help="Times that lie months from when the file was last written are right.")
@click.option("--join-lines", is_flag=True, help="Lines without a time of their own belong to the line before.")
@options.with_broker
@options.json_option
def command(
    file: Path | None,
    topic: str | None,
    registry: str | None,
    parse: str | None,
    settings: str,
    time_format: str | None,
    time_field: str | None,
    zone: ZoneInfo | None,
    accept_times: bool,
    join_lines: bool,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Show how the first thousand lines of FILE would be read: their times, their columns, and what to type to load them.

    Nothing is sent, and neither a broker nor a warehouse is needed. With --topic and --registry, the same for values that name
    a schema: which schemas, their columns, what would be a dead letter.

    \b
    logbus try /var/log/app.log
    logbus try --topic orders --registry http://127.0.0.1:8081
    """
    if (file is None) == (topic is None):
        raise click.UsageError("name a FILE, or a topic with --topic")
    if topic is not None:
        try_topic(config, topic, registry, parse, options.parse_settings(settings), as_json)
        return
    if click.get_current_context().get_parameter_source("registry") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--registry is for the values of a topic: add --topic NAME instead of a file")
    assert file is not None
    times = timestamp_extractor.TimeOptions(format_of=time_format, field=time_field, zone=zone, accepts_times=accept_times)
    named = [("--time-format", time_format), ("--time-field", time_field), ("--timezone", zone and str(zone))]
    words = [word for option, value in named if value for word in (option, str(value))]
    words += ["--accept-times"] if accept_times else []
    proposal = propose(file, times, ship.LINE_BYTES_MAX, joins=join_lines, parse=parse, settings=options.parse_settings(settings))
    if as_json:
        output.show_json(summary(proposal, words))
    else:
        show(proposal, words)


def try_topic(
    config: Mapping[str, Any], topic: str, registry: str | None, parse: str | None, settings: Mapping[str, Any], as_json: bool
) -> None:
    if registry is None:
        raise click.UsageError(
            "--topic reads values by the schemas that they name: add --registry URL, or set LOGBUS_REGISTRY_URL"
        )
    check_registry("--registry", registry, errors.UserError)
    # Here, because Arrow is not needed for a file.
    from logbus.parsing.registry_client import RegistryClient
    from logbus.shipper.proposal import newest_records, propose_topic

    messages = newest_records(config, topic)
    with RegistryClient(registry, config) as client:
        proposal = propose_topic(topic, messages, client.fetch, parse, {"registry": registry, **settings})
    if as_json:
        output.show_json(proposal.summary())
    else:
        show_topic(proposal)


def show_topic(proposal: TopicProposal) -> None:
    if not proposal.records:
        output.echo(f"topic {proposal.topic} holds no records yet")
        return
    span = (
        f", from {model.instant_text(proposal.first)} to {model.instant_text(proposal.last)}"
        if proposal.first and proposal.last
        else ""
    )
    output.echo(f"topic     {proposal.topic}: the last {many(proposal.records, 'record')}{span}")
    schemas = ", ".join(f"{name} of {many(count, 'record')}" for name, count in proposal.schemas.items())
    output.echo(f"schemas   {schemas}")
    output.echo(*parser_of(proposal.trial, (), proposal.records).split("\n"))
    show_samples(proposal.trial)
    if proposal.trouble is not None:
        raise errors.UserError(proposal.trouble)
    show_commands(proposal.commands, proposal.dag, "this file among its DAGs")


def show(proposal: LogProposal, words: list[str]) -> None:
    if not proposal.records:
        output.echo(f"{proposal.path} holds no lines yet")
        return
    for sentence in (times_of(proposal), parser_of(proposal.trial, proposal.others, proposal.records)):
        output.echo(*sentence.split("\n"))
    show_samples(proposal.trial)
    if proposal.trouble is not None:
        raise errors.UserError(proposal.trouble)
    file = dag_of(proposal.name, proposal.name, proposal.trial)
    show_commands(commands(proposal, words), file, "the first of these commands, and this file among its DAGs")


def show_commands(commands: Sequence[str], file: str, needs: str) -> None:
    output.echo("", "To load it:", "")
    for line in commands:
        output.echo(f"    {line}")
    output.echo("", f"Or every hour with Airflow: {needs}:", "")
    for line in file.splitlines():
        output.echo(f"    {line}".rstrip())


def times_of(proposal: LogProposal) -> str:
    formats = " and ".join(proposal.extractor.names) or "not understood"
    span = (
        f", from {model.instant_text(proposal.first)} to {model.instant_text(proposal.last)}"
        if proposal.first and proposal.last
        else ""
    )
    sentences = [f"time      {formats}: {proposal.dated:,} of {many(proposal.records, 'record')}{span}"]
    if proposal.zoneless:
        zone = proposal.extractor.around.zone
        sentences.append(f"          written without a zone and taken in {zone}: --timezone names another, such as Europe/Berlin")
    if proposal.is_damaged:
        sentences.append("          the compressed file is cut off: only these can be read")
    if proposal.ahead:
        sentences.append(
            f"          {many(proposal.ahead, 'record')} more than an hour ahead of now: a clock is wrong, or it is local time "
            "without a zone, which --timezone names"
        )
    if proposal.months_away:
        few, first = many(sum(proposal.months_away.values()), "record"), merged_lines.day_text(min(proposal.months_away))
        sentences.append(
            f"          warning: {few} months away from the others, the first on {first}: a date in a text was taken for a "
            "time, or a clock was wrong"
        )
    if proposal.joins and proposal.continued:
        lines = many(proposal.continued, "line")
        sentences.append(f"          {lines} that continue the one before are joined to it (--join-lines)")
    return "\n".join(sentences)


def parser_of(trial: ParserTrial, other_trials: Sequence[ParserTrial], records: int) -> str:
    others = ", ".join(f"{other.parse} {other.parsed:,}" for other in other_trials if other.parsed)
    lines = [f"parse     {trial.parse}: {trial.parsed:,} of {many(records, 'record')}"]
    if others:
        lines.append(f"          others: {others}")
    if trial.errors:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in trial.errors.items())
        lines.append(f"          dead letters: {kinds}")
    return "\n".join(lines)


def show_samples(trial: ParserTrial) -> None:
    """Column by column: rows of many columns are wider than any terminal."""
    if not trial.samples:
        return
    table = output.Table("column", *(f"record {number}" for number in range(1, len(trial.samples) + 1)))
    for name in trial.columns:
        table.add_row(name, *(cell(sample[name]) for sample in trial.samples))
    output.echo("")
    output.show(table)


def cell(value: object) -> str:
    text = "" if value is None else str(shown(value))
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + "..."


@click.command("sample")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lines", type=click.IntRange(1, 100_000_000), default=20_000, show_default=True, help="How many lines.")
@click.option("--hours", type=click.IntRange(1, 24 * 366), default=24, show_default=True, help="How many hours they cover.")
@click.option("--seed", type=int, default=2011, show_default=True, help="The same seed gives the same file.")
@click.option(
    "--end", type=click.DateTime(), show_default="the last hour that is closed", help="When it ends, in UTC, such as 2015-05-21."
)
@click.option("--force", is_flag=True, help="Overwrite a FILE that exists.")
def sample_command(file: Path, lines: int, hours: int, seed: int, end: datetime | None, force: bool) -> None:
    """Write a small realistic access log of the last hours to FILE, or to standard output if that is -."""
    ends_at = last_closed_hour(options.clock()) if end is None else end.replace(tzinfo=UTC)
    if str(file) == "-":
        for line in sample_lines(lines=lines, hours=hours, seed=seed, end=ends_at):
            output.write_raw(line)
        return
    if file.exists() and not force:
        # The obvious name for a sample is often that of a real log.
        raise errors.UserError(f"{file} already exists: choose another name, or --force to overwrite it")
    try:
        write_sample(file, lines=lines, hours=hours, seed=seed, end=ends_at)
    except OSError as error:
        raise errors.UserError(f"cannot write {file}: {error.strerror}") from error
    output.echo(f"{file}: {lines} lines over the {hours} hours before {model.instant_text(ends_at)}")
