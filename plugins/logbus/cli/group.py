"""`logbus group`: consumer groups, in the words and columns of kafka-consumer-groups; `seek` moves offsets with its flags.
Deleting and moving are dry runs unless --execute.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from logbus import errors, formatting, model
from logbus.cli import options, output
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.groups import GroupMember, GroupReading, Groups, end_offsets_of, lag_at
from logbus.kafka.topic_list import TopicBatches
from logbus.kafka.topics import Topics
from logbus.status import group_offsets
from logbus.status.group_offsets import Move, Target, TopicChoice

OFFSET_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
POSITION_NAMES = ("group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id")
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")


@click.group("group")
def command() -> None:
    """Consumer groups: list, describe and delete them; move them to a time, an offset or a window."""


def opened(config: Mapping[str, Any]) -> Groups:
    return Groups(Client.for_question(config))


@command.command("ls")
@options.with_broker
@options.json_option
def list_groups(config: Mapping[str, Any], as_json: bool) -> None:
    """List groups and their states."""
    show_rows(("GROUP", "STATE"), ("group", "state"), list(opened(config).states().items()), as_json)


def of_groups(function: Callable[..., None]) -> Callable[..., None]:
    """The options shared by the commands that show groups."""
    for option in (
        options.json_option,
        options.with_broker,
        click.option("--all-groups", is_flag=True, help="All groups."),
        options.groups_argument(required=False),
    ):
        function = option(function)
    return function


def chosen(broker: Groups, groups: Sequence[str], all_groups: bool) -> list[GroupReading]:
    """The groups as they are now. A named group that cannot be read is an error; with --all-groups it is only reported."""
    if bool(groups) == all_groups:
        raise click.UsageError("name groups, or give --all-groups")
    return named(broker, groups) if groups else every(broker)


def named(broker: Groups, groups: Sequence[str]) -> list[GroupReading]:
    readings = broker.client.settled(lambda: broker.read(groups))
    for reading in readings:
        if reading.error is not None:
            raise reading.error
    return readings


def every(broker: Groups) -> list[GroupReading]:
    readings = [reading for reading in broker.client.settled(broker.read) if not isinstance(reading.error, errors.GroupMissing)]
    for reading in readings:
        if reading.error is not None:
            output.echo_err(f"group {reading.name}: {reading.error}")
    return readings


@command.command("describe")
@click.option("--offsets", "what", flag_value="offsets", default=True, help="How far each partition is read; the default.")
@click.option("--members", "what", flag_value="members", help="Who is in the group.")
@click.option("--state", "what", flag_value="state", help="State, coordinator and assignor.")
@click.option("--verbose", is_flag=True, help="With --members: which partitions each holds.")
@of_groups
def describe(what: str, verbose: bool, groups: Sequence[str], all_groups: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Show how far GROUPS have read, who is in them, or their state."""
    broker = opened(config)
    SHOWN[what](broker, chosen(broker, groups, all_groups), as_json, verbose)


@command.command("offsets")
@of_groups
def offsets(groups: Sequence[str], all_groups: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Show how far GROUPS have read, as describe does."""
    broker = opened(config)
    show_offsets(broker, chosen(broker, groups, all_groups), as_json)


@command.command("members")
@click.option("--verbose", is_flag=True, help="Which partitions each holds.")
@of_groups
def members(verbose: bool, groups: Sequence[str], all_groups: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Show who is in GROUPS, as describe --members does."""
    broker = opened(config)
    show_members(broker, chosen(broker, groups, all_groups), as_json, verbose)


def show_offsets(broker: Groups, groups: Sequence[GroupReading], as_json: bool, verbose: bool = False) -> None:
    for group in groups:
        if not group.members:
            output.echo_err(f"Consumer group '{group.name}' has no active members.")
    ends = end_offsets_of(TopicBatches(broker.client), groups)
    show_rows(OFFSET_COLUMNS, POSITION_NAMES, [row for group in groups for row in position_rows(group, ends)], as_json)


def show_rows(columns: Sequence[str], names: Sequence[str], rows: Sequence[tuple[Any, ...]], as_json: bool) -> None:
    """Under Kafka's own columns, or as JSON under our names."""
    if as_json:
        output.show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.show_columns([columns, *rows])


def position_rows(group: GroupReading, ends: Mapping[PartitionId, int]) -> Iterable[tuple[Any, ...]]:
    readers = group.readers
    for partition in group.partitions:
        member = readers.get(partition)
        holder = (member.member_id, member.host, member.client_id) if member else (None, None, None)
        yield (
            group.name,
            *partition,
            group.committed.get(partition),
            ends.get(partition),
            lag_at(group, partition, ends),
            *holder,
        )


def show_members(broker: Groups, groups: Sequence[GroupReading], as_json: bool, verbose: bool = False) -> None:
    members = [(group.name, member) for group in groups for member in group.members]
    if as_json:
        output.show_json([member_summary(name, member) for name, member in members])
        return
    rows = [member_row(name, member) for name, member in members]
    count = len(MEMBER_COLUMNS) if verbose else len(MEMBER_COLUMNS) - 1
    output.show_columns(row[:count] for row in (MEMBER_COLUMNS, *rows))


def member_row(group: str, member: GroupMember) -> tuple[Any, ...]:
    assignments = ",".join(f"{topic}:{partition}" for topic, partition in member.assignments)
    return (group, member.member_id, member.host, member.client_id, len(member.assignments), assignments)


def member_summary(group: str, member: GroupMember) -> dict[str, Any]:
    places = [{"topic": topic, "partition": partition} for topic, partition in member.assignments]
    names = {"group": group, "consumer_id": member.member_id, "host": member.host, "client_id": member.client_id}
    return {**names, "assignments": places}


def show_states(broker: Groups, groups: Sequence[GroupReading], as_json: bool, verbose: bool = False) -> None:
    rows = [(group.name, group.coordinator, group.protocol, group.state, len(group.members)) for group in groups]
    show_rows(STATE_COLUMNS, ("group", "coordinator", "assignment_strategy", "state", "members"), rows, as_json)


SHOWN: Mapping[str, Callable[..., None]] = {"offsets": show_offsets, "members": show_members, "state": show_states}


@command.command("delete")
@options.groups_argument(required=True)
@options.execute_option
@options.with_broker
@options.json_option
def delete(groups: Sequence[str], is_executed: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Delete GROUPS with their committed offsets; they must have no members. A dry run unless --execute."""
    broker = opened(config)
    readings = named(broker, groups)
    for group in readings:
        what = f"group {group.name}, {group.state}, offsets of {formatting.many(len(group.committed), 'partition')}"
        if is_executed:
            broker.delete(group.name)
        if not as_json:
            output.echo(f"deleted: {what}" if is_executed else f"would be deleted: {what}")
    if as_json:
        output.show_json({"executed": is_executed, "groups": [deletion_summary(group) for group in readings]})
    if not is_executed:
        output.echo_err("dry run: nothing was deleted; --execute does it")


def deletion_summary(group: GroupReading) -> dict[str, Any]:
    return {"group": group.name, "state": group.state, "partitions": len(group.committed)}


DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """An ISO 8601 duration, `PnDTnHnMnS`, as kafka-consumer-groups takes it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        match = DURATION.fullmatch(value)
        if match is None or not any(match.groups()):
            self.fail(f"{value!r} is not a duration; write it like P1DT6H30M", param, ctx)
        days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


@click.command("seek")
@click.option("--group", "group", required=True, help="The consumer group; created if it does not exist.")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="A topic, or some of its partitions; may be repeated."
)
@click.option("--all-topics", is_flag=True, help="Every topic for which the group has committed offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first record that is still there.")
@click.option("--to-latest", is_flag=True, help="After the last record.")
@click.option("--to-current", is_flag=True, help="To where the group is now; with --export, a backup.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--to-datetime", type=options.Instant(), help="To the first record at or after this instant.")
@click.option("--by-duration", type=Duration(), metavar="PnDTnHnMnS", help="To the first record younger than this.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back if N is negative.")
@click.option(
    "--from-file", type=click.Path(path_type=Path, dir_okay=False), help="To the offsets of a file: topic,partition,offset."
)
@click.option("--to-window", metavar="PIPELINE@START", help="To the first record of a frozen window; needs --warehouse.")
@options.execute_option
@click.option("--dry-run", is_flag=True, help="Only show it; the default.")
@click.option("--export", "is_exported", is_flag=True, help="Print topic,partition,offset for --from-file instead of the table.")
@options.warehouse_if_named_option
@options.with_broker
@options.json_option
def seek_command(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    is_executed: bool,
    dry_run: bool,
    is_exported: bool,
    warehouse_url: str | None,
    config: Mapping[str, Any],
    as_json: bool,
    **targets: Any,
) -> None:
    """Move a group's committed offsets. The group must have no members; windows and tables are never touched."""
    if is_executed and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other")
    if is_exported and as_json:
        raise click.UsageError("--export prints topic,partition,offset: it and -o json exclude each other")
    flag, value = only_target(targets)
    client = Client.for_command(config)
    groups, log = Groups(client), Topics(client)
    chosen = [TopicChoice.parse(text) for text in topics]
    if flag in OWN_TOPICS:
        target, own_topics = OWN_TOPICS[flag](value, group, warehouse_url)
        chosen = restricted(chosen, own_topics)
    else:
        target = TARGETS[flag](value)
        chosen = chosen or every_topic(groups.committed(group), group, all_topics)
    moves = group_offsets.plan(groups, log, group, chosen, target)
    if is_executed:
        group_offsets.execute(groups, moves)
    if as_json:
        output.show_json({"executed": is_executed, "moves": [summary(move) for move in moves]})
    elif is_exported:
        output.write_raw(exported(moves))
    else:
        output.echo(*table(moves))
    tell(moves, is_executed)


TARGETS: Mapping[str, Callable[[Any], Target]] = {
    "to_earliest": lambda value: group_offsets.earliest,
    "to_latest": lambda value: group_offsets.latest,
    "to_current": lambda value: group_offsets.current,
    "to_offset": group_offsets.offset,
    "to_datetime": group_offsets.instant,
    "by_duration": lambda value: group_offsets.instant(options.clock() - value),
    "shift_by": group_offsets.shift,
}


def only_target(targets: Mapping[str, Any]) -> tuple[str, Any]:
    """The one flag that names the target."""
    given = [(name, value) for name, value in targets.items() if value is not None and value is not False]
    if len(given) != 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in targets)
        raise click.UsageError(f"give exactly one of {flags}")
    return given[0]


def every_topic(committed: Mapping[PartitionId, int], group: str, is_wanted: bool) -> list[TopicChoice]:
    """All topics with committed offsets, if --all-topics is given."""
    if not is_wanted:
        raise click.UsageError("say which topics: --topic TOPIC[:0,1] (may be repeated) or --all-topics")
    if not committed:
        raise errors.UserError(f"group {group} has committed nothing: name a --topic")
    return [TopicChoice(topic=topic) for topic in sorted({topic for topic, _ in committed})]


def restricted(chosen: list[TopicChoice], own: list[TopicChoice]) -> list[TopicChoice]:
    """The target's own topics, or the chosen ones among them."""
    own_topics = {choice.topic for choice in own}
    strange = [choice.topic for choice in chosen if choice.topic not in own_topics]
    if strange:
        raise errors.UserError(
            f"the target has no offsets for topic {', '.join(strange)}, only for {', '.join(sorted(own_topics))}"
        )
    return chosen or own


def from_file(path: Path, group: str, warehouse_url: str | None) -> tuple[Target, list[TopicChoice]]:
    offsets = read_offsets(path, group)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, []).append(partition)
    choices = [TopicChoice(topic=topic, partitions=tuple(partitions)) for topic, partitions in by_topic.items()]
    return group_offsets.listed(offsets), choices


def read_offsets(path: Path, group: str) -> dict[PartitionId, int]:
    """`topic,partition,offset` lines; with a group in front, only this group's lines are taken."""
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(path.read_text().splitlines()) if row]
    except OSError as error:
        raise errors.UserError(f"cannot read the offsets of {path}: {error.strerror}") from None
    own_rows = [row[-3:] for row in rows if len(row) != 4 or row[0] == group]
    try:
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in own_rows}
    except ValueError:
        raise errors.UserError(f"{path} has lines that are not topic,partition,offset") from None
    if not offsets:
        raise errors.UserError(f"{path} has no offsets for group {group}")
    return offsets


def to_window(text: str, group: str, warehouse_url: str | None) -> tuple[Target, list[TopicChoice]]:
    pipeline_name, at_sign, start = text.rpartition("@")
    if not at_sign:
        raise click.UsageError(f"--to-window is PIPELINE@START, such as access_log@2015-05-17T10:00:00Z; got {text!r}")
    if warehouse_url is None:
        raise click.UsageError("--to-window needs the ledger: give --warehouse, or set LOGBUS_WAREHOUSE_URL")
    frozen = options.open_ledger(warehouse_url).window(pipeline_name, window_start(start))
    return group_offsets.window(frozen), [TopicChoice(topic=frozen.topic)]


def window_start(text: str) -> datetime:
    try:
        return model.parse_instant(text)
    except ValueError as error:
        raise errors.UserError(str(error)) from None


# Targets that name their topics themselves.
OWN_TOPICS: Mapping[str, Callable[[Any, str, str | None], tuple[Target, list[TopicChoice]]]] = {
    "from_file": from_file,
    "to_window": to_window,
}


def table(moves: Sequence[Move]) -> list[str]:
    """What kafka-consumer-groups prints, followed by the group's current offset."""
    rows = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET")]
    rows += [(m.group, m.topic, str(m.partition), str(m.new), "-" if m.current is None else str(m.current)) for m in moves]
    return ["{:<30} {:<30} {:<10} {:<15} {}".format(*row).rstrip() for row in rows]


def summary(move: Move) -> dict[str, Any]:
    """As JSON-ready values; `wanted_offset` is the target's offset before it was clamped to the log."""
    names = {"group": move.group, "topic": move.topic, "partition": move.partition}
    return {**names, "new_offset": move.new, "current_offset": move.current, "wanted_offset": move.target}


def exported(moves: Sequence[Move]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((move.topic, move.partition, move.new) for move in moves)
    return text.getvalue()


def tell(moves: Sequence[Move], is_executed: bool) -> None:
    """What the table does not show; on standard error, never in the output that a program reads."""
    for move in moves:
        if move.target != move.new:
            message = f"{move.topic}-{move.partition}: offset {move.target} is outside the log, so {move.new} is used"
            output.echo_err(message)
    if not is_executed:
        output.echo_err("dry run: nothing was changed; --execute does it")


command.add_command(seek_command)
