"""`logbus topic`, with the options and lines of kafka-topics and kafka-configs; deleting is a dry run unless --execute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from logbus.cli import options, output
from logbus.cli.output import Table
from logbus.errors import TopicMissing, UserError
from logbus.formatting import many
from logbus.kafka import cluster, topic_list
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.topics import BROKERS_CHOICE, Topics, TopicSetting
from logbus.status.lag import Unloaded, unloaded_of

SEVERAL = re.compile(r",(?=[\w.]+=)")  # between settings, not inside `cleanup.policy=compact,delete`


@click.group("topic")
def command() -> None:
    """Topics: list, create, describe, change and delete them."""


class TopicSettings(options.Setting):
    """`name=value`, or several with commas between them, as kafka-configs takes them; lists may be in brackets."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [super(TopicSettings, self).convert(text, param, ctx) for text in SEVERAL.split(value)]
        return tuple((name, text.removeprefix("[").removesuffix("]")) for name, text in pairs)


def read(client: Client, names: Sequence[str]) -> list[topic_list.TopicReading]:
    """The topics as they are now; an error about one is printed and does not hide the others."""
    # Settled: a topic that was created a moment ago may be unknown to the broker that is asked first.
    readings = client.settled(
        lambda: topic_list.read_topics(topic_list.TopicBatches(client), names, lambda: sizes(client), with_settings=False)
    )
    for topic in readings:
        if topic.error is not None:
            output.echo_err(f"topic {topic.name}: {topic.error}")
    return readings


def sizes(client: Client) -> Mapping[PartitionId, int]:
    return cluster.partition_bytes(cluster.log_directories(client))


def named(client: Client, names: Sequence[str]) -> list[topic_list.TopicReading]:
    """The topics named on the command line: an error if nothing is known of one of them."""
    readings = read(client, names)
    for topic in readings:
        if topic.description is None and topic.error is not None:
            raise topic.error
    return readings


@command.command("ls")
@click.option(
    "--exclude-internal/--include-internal", default=True, show_default=True, help="The broker's own, such as __consumer_offsets."
)
@click.option("--names", "names_only", is_flag=True, help="Names alone, one a line: what kafka-topics --list prints.")
@options.with_broker
@options.json_option
def list_topics(config: Mapping[str, Any], exclude_internal: bool, names_only: bool, as_json: bool) -> None:
    """List topics with their partitions, records and bytes on disk."""
    client = Client.for_question(config)
    names = topic_list.TopicBatches(client).topic_names(with_internal=not exclude_internal)
    if names_only:
        output.echo(*names)
        return
    readings = read(client, names)
    if as_json:
        output.show_json([summary(topic) for topic in readings])
        return
    table = output.Table("topic", "partitions", "replicas", "records", "bytes", numbers_from=1)
    for topic in readings:
        values = (len(topic.partitions), topic.replication_factor, topic.records, topic.size_bytes)
        table.add_row(topic.name, *map(text, values))
    output.show(table)


@command.command("describe")
@options.topics_argument(required=False)
@options.with_broker
@options.json_option
def describe(topics: Sequence[str], config: Mapping[str, Any], as_json: bool) -> None:
    """Show partitions, leaders, offsets and overridden settings of TOPICS, by default of all."""
    client = Client.for_question(config)
    readings = (
        named(client, existing_topics(client, topics)) if topics else read(client, topic_list.TopicBatches(client).topic_names())
    )
    settings = Topics(client).settings_in_force([topic.name for topic in readings if topic.description is not None])
    own = {name: [setting for setting in listed if setting.is_own] for name, listed in settings.items()}
    if as_json:
        output.show_json([{**summary(topic), "configs": by_name(own.get(topic.name, []))} for topic in readings])
        return
    for number, topic in enumerate(readings):
        output.echo(*([""] if number else []), headline(topic, own.get(topic.name, [])))
        output.show(partition_table(topic))


@command.command("create")
@options.topics_argument(required=True)
@click.option("--partitions", type=click.IntRange(1), help="How many; by default the broker's num.partitions.")
@click.option("--replication-factor", type=click.IntRange(1), help="By default the broker's default.replication.factor.")
@click.option("--config", "settings", multiple=True, type=TopicSettings(), help="A setting of the topic; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@options.with_broker
def create(
    topics: Sequence[str],
    partitions: int | None,
    replication_factor: int | None,
    settings: Sequence[Sequence[tuple[str, str]]],
    if_not_exists: bool,
    config: Mapping[str, Any],
) -> None:
    """Create TOPICS."""
    client, values = Client.for_question(config), flat(settings)
    for name in topics:
        is_made = Topics(client).create(
            name,
            partitions=partitions or BROKERS_CHOICE,
            replication_factor=replication_factor or BROKERS_CHOICE,
            settings=values,
            if_not_exists=if_not_exists,
        )
        output.echo(f"topic {name} created" if is_made else f"topic {name} already exists; left unchanged")


@command.command("alter")
@options.topics_argument(required=True)
@click.option("--partitions", type=click.IntRange(1), help="How many it should have; never fewer than now.")
@click.option("--config", "--add-config", "settings", multiple=True, type=TopicSettings(), help="Set this; may be repeated.")
@click.option("--delete-config", "deleted", multiple=True, metavar="NAME", help="Reset this to the broker's value.")
@options.with_broker
def alter(
    topics: Sequence[str],
    partitions: int | None,
    settings: Sequence[Sequence[tuple[str, str]]],
    deleted: Sequence[str],
    config: Mapping[str, Any],
) -> None:
    """Add partitions to TOPICS, change their settings."""
    client, values, gone = Client.for_question(config), flat(settings), flat_names(deleted)
    if partitions is None and not values and not gone:
        raise click.UsageError("name what to change: --partitions, --config or --delete-config")
    existing_topics(client, topics)
    for name in topics:
        if partitions is not None:
            Topics(client).add_partitions(name, partitions)
            output.echo(f"topic {name} has {many(partitions, 'partition')}")
            output.echo_err("note: records with a key may go to other partitions from now on")
        change(client, name, values, gone)


def change(client: Client, name: str, values: Mapping[str, str], gone: Sequence[str]) -> None:
    if not values and not gone:
        return
    Topics(client).change_settings(name, values, gone)
    done = [*(f"{key}={value}" for key, value in values.items()), *(f"{key} reset to the broker's value" for key in gone)]
    output.echo(f"topic {name}: {', '.join(done)}")


@command.command("config")
@options.topics_argument(required=True)
@click.option("--describe", "is_described", is_flag=True, help="Show them; the default if nothing is changed.")
@click.option("--all", "shows_all", is_flag=True, help="Also those that the broker sets for all topics.")
@click.option("--alter", "is_altered", is_flag=True, help="Change them; --add-config and --delete-config imply it.")
@click.option("--add-config", "settings", multiple=True, type=TopicSettings(), help="Set this; may be repeated.")
@click.option("--delete-config", "deleted", multiple=True, metavar="NAME", help="Reset this to the broker's value.")
@options.with_broker
@options.json_option
def config_command(
    topics: Sequence[str],
    is_described: bool,
    shows_all: bool,
    is_altered: bool,
    settings: Sequence[Sequence[tuple[str, str]]],
    deleted: Sequence[str],
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Show the settings of TOPICS, or change them, as kafka-configs does."""
    client, values, gone = Client.for_question(config), flat(settings), flat_names(deleted)
    if is_altered and not values and not gone:
        raise click.UsageError("--alter needs --add-config name=value or --delete-config name")
    if is_described and (values or gone):
        raise click.UsageError("--describe shows, --add-config and --delete-config change: not both at once")
    existing_topics(client, topics)
    if values or gone:
        for name in topics:
            change(client, name, values, gone)
        return
    in_force = Topics(client).settings_in_force(topics).items()
    shown = {name: [setting for setting in listed if setting.is_own or shows_all] for name, listed in in_force}
    if as_json:
        output.show_json({name: [setting_summary(setting) for setting in listed] for name, listed in shown.items()})
        return
    table = output.Table("topic", "setting", "value", "from")
    for name, listed in shown.items():
        for setting in listed:
            table.add_row(name, setting.name, secret_or_value(setting), setting.source)
    output.show(table)
    if not any(shown.values()):
        output.echo_err("no overrides; --all shows what the broker sets for all topics")


@command.command("delete")
@options.topics_argument(required=True)
@click.option("--if-exists", is_flag=True, help="Do nothing if the topic does not exist.")
@click.option("--accept-loss", is_flag=True, help="Also if a pipeline has not loaded all of it.")
@options.warehouse_if_named_option
@options.execute_option
@options.with_broker
@options.json_option
def delete(
    topics: Sequence[str],
    if_exists: bool,
    accept_loss: bool,
    warehouse_url: str | None,
    is_executed: bool,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Delete TOPICS with all their records. A dry run unless --execute.

    If the ledger shows that a pipeline has not loaded all of a topic yet, it is refused, unless --accept-loss is given.
    """
    client = Client.for_question(config)
    names = (
        [name for name in topics if name in topic_list.TopicBatches(client).topic_names(with_internal=True)]
        if if_exists
        else existing_topics(client, topics)
    )
    readings = named(client, names)
    needed = still_needed(warehouse_url, config, names)
    for who in needed:
        output.echo_err(f"not loaded: pipeline {who} of topic {who.topic}")
    if needed and is_executed and not accept_loss:
        raise UserError(
            f"not everything that would be deleted is loaded: {', '.join(map(str, needed))}. Nothing was deleted: load it "
            "(`logbus load --only-missing`), or delete it unloaded with --accept-loss"
        )
    for topic in readings:
        records = "? records" if topic.records is None else many(topic.records, "record")
        what = f"topic {topic.name}, {many(len(topic.partitions), 'partition')}, {records}"
        if is_executed:
            Topics(client).delete([topic.name])
        if not as_json:
            output.echo(f"deleted: {what}" if is_executed else f"would be deleted: {what}")
    if as_json:
        lost = [unloaded.summary() for unloaded in needed]
        output.show_json({"executed": is_executed, "topics": [summary(topic) for topic in readings], "unloaded": lost})
    if not is_executed:
        output.echo_err("dry run: nothing was deleted; --execute does it")


def still_needed(warehouse_url: str | None, config: Mapping[str, Any], names: Sequence[str]) -> list[Unloaded]:
    """Pipelines that have not loaded all of these topics; none can be found without a ledger."""
    if warehouse_url is None:
        output.echo_err("no warehouse is named (--warehouse): whether a pipeline still needs the records was not checked")
        return []
    from logbus.loads.engine import connect
    from logbus.windows.migrations import create_ledger, ledger_revision

    engine = connect(warehouse_url)
    if ledger_revision(engine) is None:
        return []
    create_ledger(engine)
    return list(unloaded_of(engine, Topics(Client.for_question(config)), names, options.clock()))


def existing_topics(client: Client, names: Sequence[str]) -> list[str]:
    """The wanted topics; `TopicMissing` names those that do not exist."""
    existing = set(topic_list.TopicBatches(client).topic_names(with_internal=True))
    if missing := [name for name in names if name not in existing]:
        raise TopicMissing(
            f"the broker at {client.address} has no topic {', '.join(missing)}: `logbus topic ls` lists those it has"
        )
    return list(names)


def flat(given: Sequence[Sequence[tuple[str, str]]]) -> dict[str, str]:
    return {name: value for pairs in given for name, value in pairs}


def flat_names(given: Sequence[str]) -> list[str]:
    return [name.strip() for names in given for name in names.split(",")]


def headline(topic: topic_list.TopicReading, own: Iterable[TopicSetting]) -> str:
    """The first line of kafka-topics --describe."""
    configs = ",".join(f"{setting.name}={setting.value}" for setting in own)
    counts = f"PartitionCount: {len(topic.partitions)}  ReplicationFactor: {topic.replication_factor}"
    return f"Topic: {topic.name}  TopicId: {topic.topic_id}  {counts}  Configs: {configs}"


def partition_table(topic: topic_list.TopicReading) -> Table:
    table = Table("Partition", "Leader", "Replicas", "Isr", "Start-Offset", "End-Offset", "Records", "Bytes")
    for part in topic.partitions:
        nodes = (text(part.leader), *(",".join(map(str, broker_ids)) for broker_ids in (part.replicas, part.in_sync)))
        number = part.partition
        offsets = (topic.starts.get(number), topic.ends.get(number), topic.records_in(number))
        table.add_row(str(number), *nodes, *map(text, offsets), text(topic.sizes.get(number)))
    return table


def summary(topic: topic_list.TopicReading) -> dict[str, Any]:
    """As JSON-ready values."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "replication_factor": topic.replication_factor,
        "records": topic.records,
        "size_bytes": topic.size_bytes,
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": list(part.replicas),
                "isr": list(part.in_sync),
                "start_offset": topic.starts.get(part.partition),
                "end_offset": topic.ends.get(part.partition),
                "size_bytes": topic.sizes.get(part.partition),
            }
            for part in topic.partitions
        ],
    }


def setting_summary(setting: TopicSetting) -> dict[str, Any]:
    value = None if setting.is_sensitive else setting.value
    return {"name": setting.name, "value": value, "source": setting.source, "is_sensitive": setting.is_sensitive}


def by_name(settings: Iterable[TopicSetting]) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in settings if not setting.is_sensitive}


def secret_or_value(setting: TopicSetting) -> str:
    return "(secret)" if setting.is_sensitive else text(setting.value)


def text(value: Any) -> str:
    return "-" if value is None else str(value)
