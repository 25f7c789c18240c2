"""`logbus group seek`: moves a group's offsets, with the flags of kafka-consumer-groups; a dry run unless --execute."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from logbus.commands import options, output
from logbus.errors import UserError
from logbus.kafka.client import Client, Place
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.model import parse_instant
from logbus.status import group_seek
from logbus.status.group_seek import Move, Target, TopicChoice

DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE)


class Duration(click.ParamType[timedelta]):
    """An ISO 8601 duration, `PnDTnHnMnS`, as kafka-consumer-groups takes it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = DURATION.fullmatch(value)
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is not a duration; write it like P1DT6H30M", param, ctx)
        days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
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
@click.option(
    "--warehouse", "warehouse_url", envvar="LOGBUS_WAREHOUSE_URL", metavar="URL", help="The PostgreSQL that holds the ledger."
)
@options.with_broker
@options.json_option
def command(
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
    client = Client.of_a_command(config)
    groups, log = Groups(client), Topics(client)
    chosen = [TopicChoice.parse(text) for text in topics]
    if flag in OWN_TOPICS:
        target, own_topics = OWN_TOPICS[flag](value, group, warehouse_url)
        chosen = restricted(chosen, own_topics)
    else:
        target = TARGETS[flag](value)
        chosen = chosen or every_topic(groups.committed(group), group, all_topics)
    moves = group_seek.plan(groups, log, group, chosen, target)
    if is_executed:
        group_seek.execute(groups, moves)
    if as_json:
        output.show_json({"executed": is_executed, "moves": [summary(move) for move in moves]})
    elif is_exported:
        output.hand_over(exported(moves))
    else:
        output.tell(*table(moves))
    tell(moves, is_executed)


TARGETS: Mapping[str, Callable[[Any], Target]] = {
    "to_earliest": lambda value: group_seek.earliest,
    "to_latest": lambda value: group_seek.latest,
    "to_current": lambda value: group_seek.current,
    "to_offset": group_seek.offset,
    "to_datetime": group_seek.instant,
    "by_duration": lambda value: group_seek.instant(options.clock() - value),
    "shift_by": group_seek.shift,
}


def only_target(targets: Mapping[str, Any]) -> tuple[str, Any]:
    """The one flag that names the target."""
    given = [(name, value) for name, value in targets.items() if value is not None and value is not False]
    if len(given) != 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in targets)
        raise click.UsageError(f"give exactly one of {flags}")
    return given[0]


def every_topic(committed: Mapping[Place, int], group: str, is_wanted: bool) -> list[TopicChoice]:
    """All topics with committed offsets, if --all-topics is given."""
    if not is_wanted:
        raise click.UsageError("say which topics: --topic TOPIC[:0,1] (may be repeated) or --all-topics")
    if not committed:
        raise UserError(f"group {group} has committed nothing: name a --topic")
    return [TopicChoice(topic=topic) for topic in sorted({topic for topic, _ in committed})]


def restricted(chosen: list[TopicChoice], own: list[TopicChoice]) -> list[TopicChoice]:
    """The target's own topics, or the chosen ones among them."""
    known = {choice.topic for choice in own}
    strange = [choice.topic for choice in chosen if choice.topic not in known]
    if strange:
        raise UserError(f"the target has no offsets for topic {', '.join(strange)}, only for {', '.join(sorted(known))}")
    return chosen or own


def from_file(path: Path, group: str, warehouse_url: str | None) -> tuple[Target, list[TopicChoice]]:
    offsets = read_offsets(path, group)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, []).append(partition)
    choices = [TopicChoice(topic=topic, partitions=tuple(partitions)) for topic, partitions in by_topic.items()]
    return group_seek.listed(offsets), choices


def read_offsets(path: Path, group: str) -> dict[Place, int]:
    """`topic,partition,offset` lines; with a group in front, only this group's lines are taken."""
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(path.read_text().splitlines()) if row]
    except OSError as error:
        raise UserError(f"cannot read the offsets of {path}: {error.strerror}") from None
    mine = [row[-3:] for row in rows if len(row) != 4 or row[0] == group]
    try:
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in mine}
    except ValueError:
        raise UserError(f"{path} has lines that are not topic,partition,offset") from None
    if not offsets:
        raise UserError(f"{path} has no offsets for group {group}")
    return offsets


def to_window(text: str, group: str, warehouse_url: str | None) -> tuple[Target, list[TopicChoice]]:
    pipeline_name, at_sign, start = text.rpartition("@")
    if not at_sign:
        raise click.UsageError(f"--to-window is PIPELINE@START, such as access_log@2015-05-17T10:00:00Z; got {text!r}")
    if warehouse_url is None:
        raise click.UsageError("--to-window needs the ledger: give --warehouse, or set LOGBUS_WAREHOUSE_URL")
    found = options.open_ledger(warehouse_url).window(pipeline_name, window_start(start))
    return group_seek.window(found), [TopicChoice(topic=found.topic)]


def window_start(text: str) -> datetime:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UserError(str(error)) from None


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
    return {**names, "new_offset": move.new, "current_offset": move.current, "wanted_offset": move.wanted}


def exported(moves: Sequence[Move]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((move.topic, move.partition, move.new) for move in moves)
    return text.getvalue()


def tell(moves: Sequence[Move], is_executed: bool) -> None:
    """What the table does not show; on standard error, never in the output that a program reads."""
    for move in moves:
        if move.wanted != move.new:
            message = f"{move.topic}-{move.partition}: offset {move.wanted} is outside the log, so {move.new} is used"
            output.say(message)
    if not is_executed:
        output.say("dry run: nothing was changed; --execute does it")
