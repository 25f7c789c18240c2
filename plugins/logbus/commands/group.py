"""`logbus group`: consumer groups, in the words and columns of kafka-consumer-groups; deleting is a dry run unless --execute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from logbus.commands import group_seek, options, output
from logbus.errors import GroupMissing
from logbus.kafka.batches import TopicBatches
from logbus.kafka.client import Client, Place
from logbus.kafka.groups import GroupMember, GroupReading, Groups, end_offsets_of, lag_at
from logbus.wording import many

OFFSET_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
POSITION_NAMES = ("group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id")
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")


@click.group("group")
def command() -> None:
    """Consumer groups: list, describe and delete them; move them to a time, an offset or a window."""


command.add_command(group_seek.command)


def opened(config: Mapping[str, Any]) -> Groups:
    return Groups(Client.of_a_question(config))


@command.command("ls")
@options.with_broker
@options.json_option
def list_groups(config: Mapping[str, Any], as_json: bool) -> None:
    """List groups and their states."""
    states = opened(config).states()
    if as_json:
        output.show_json([{"group": name, "state": state} for name, state in states.items()])
    else:
        output.show_columns([("GROUP", "STATE"), *states.items()])


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
    found = broker.client.settled(lambda: broker.read(groups))
    for one in found:
        if one.error is not None:
            raise one.error
    return found


def every(broker: Groups) -> list[GroupReading]:
    found = [one for one in broker.client.settled(broker.read) if not isinstance(one.error, GroupMissing)]
    for one in found:
        if one.error is not None:
            output.say(f"group {one.name}: {one.error}")
    return found


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
            output.say(f"Consumer group '{group.name}' has no active members.")
    ends = end_offsets_of(TopicBatches(broker.client), groups)
    rows = [row for group in groups for row in position_rows(group, ends)]
    if as_json:
        output.show_json([dict(zip(POSITION_NAMES, row, strict=True)) for row in rows])
    else:
        output.show_columns([OFFSET_COLUMNS, *rows])


def position_rows(group: GroupReading, ends: Mapping[Place, int]) -> Iterable[tuple[Any, ...]]:
    readers = group.readers
    for place in group.places:
        member = readers.get(place)
        holder = (member.member_id, member.host, member.client_id) if member else (None, None, None)
        yield (group.name, *place, group.committed.get(place), ends.get(place), lag_at(group, place, ends), *holder)


def show_members(broker: Groups, groups: Sequence[GroupReading], as_json: bool, verbose: bool = False) -> None:
    found = [(group.name, member) for group in groups for member in group.members]
    if as_json:
        output.show_json([member_summary(name, member) for name, member in found])
        return
    rows = [member_row(name, member) for name, member in found]
    count = len(MEMBER_COLUMNS) if verbose else len(MEMBER_COLUMNS) - 1
    output.show_columns(row[:count] for row in (MEMBER_COLUMNS, *rows))


def member_row(group: str, member: GroupMember) -> tuple[Any, ...]:
    held = ",".join(f"{topic}:{partition}" for topic, partition in member.assignments)
    return (group, member.member_id, member.host, member.client_id, len(member.assignments), held)


def member_summary(group: str, member: GroupMember) -> dict[str, Any]:
    places = [{"topic": topic, "partition": partition} for topic, partition in member.assignments]
    names = {"group": group, "consumer_id": member.member_id, "host": member.host, "client_id": member.client_id}
    return {**names, "assignments": places}


def show_states(broker: Groups, groups: Sequence[GroupReading], as_json: bool, verbose: bool = False) -> None:
    rows = [(one.name, one.coordinator, one.protocol, one.state, len(one.members)) for one in groups]
    if as_json:
        names = ("group", "coordinator", "assignment_strategy", "state", "members")
        output.show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.show_columns([STATE_COLUMNS, *rows])


SHOWN: Mapping[str, Callable[..., None]] = {"offsets": show_offsets, "members": show_members, "state": show_states}


@command.command("delete")
@options.groups_argument(required=True)
@options.execute_option
@options.with_broker
@options.json_option
def delete(groups: Sequence[str], is_executed: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Delete GROUPS with their committed offsets; they must have no members. A dry run unless --execute."""
    broker = opened(config)
    found = named(broker, groups)
    for group in found:
        what = f"group {group.name}, {group.state}, offsets of {many(len(group.committed), 'partition')}"
        if is_executed:
            broker.delete(group.name)
        if not as_json:
            output.tell(f"deleted: {what}" if is_executed else f"would be deleted: {what}")
    if as_json:
        output.show_json({"executed": is_executed, "groups": [deletion_summary(group) for group in found]})
    if not is_executed:
        output.say("dry run: nothing was deleted; --execute does it")


def deletion_summary(group: GroupReading) -> dict[str, Any]:
    return {"group": group.name, "state": group.state, "partitions": len(group.committed)}
