"""`logbus cluster`: brokers, leaders, and what is wrong, for any Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from logbus.commands import options, output
from logbus.commands.topic_views import text
from logbus.errors import UnderReplicated
from logbus.kafka.client import Client
from logbus.kafka.cluster import ClusterFacts, PartitionHolders, cluster_facts
from logbus.wording import many


@click.command("cluster")
@click.option("--all", "shows_all", is_flag=True, help="Every partition, not only those with a replica out of sync or moving.")
@options.with_broker
@options.json_option
def command(config: Mapping[str, Any], shows_all: bool, as_json: bool) -> None:
    """Show brokers, the controller, and partitions that are offline, under-replicated or moving.

    Exits with status 5 if a partition has no leader, or a replica that is not in sync.
    """
    facts = cluster_facts(Client.of_a_question(config))
    if as_json:
        output.show_json(summary(facts))
    else:
        output.show(broker_table(facts))
        rows = facts.partitions if shows_all else [one for one in facts.partitions if is_noteworthy(one)]
        if rows:
            output.show(partition_table(rows))
        output.say(
            f"cluster {text(facts.cluster_id)}: {many(len(facts.brokers), 'broker')}, {many(len(facts.partitions), 'partition')}"
        )
    offline, behind = len(facts.offline), len(facts.under_replicated)
    if offline or behind:
        raise UnderReplicated(f"{many(offline, 'partition')} without a leader, {behind} with replicas out of sync")


def is_noteworthy(one: PartitionHolders) -> bool:
    return one.is_offline or one.is_under_replicated or one.is_moving


def broker_table(facts: ClusterFacts) -> output.Table:
    table = output.Table("broker", "address", "rack", "controller", "replicas", "leads", "out of sync", numbers_from=4)
    for broker in facts.brokers:
        is_controller = "yes" if broker.broker_id == facts.controller else ""
        counts = map(str, facts.counts(broker.broker_id))
        table.add_row(str(broker.broker_id), f"{broker.host}:{broker.port}", text(broker.rack), is_controller, *counts)
    return table


def partition_table(rows: Iterable[PartitionHolders]) -> output.Table:
    table = output.Table("topic", "partition", "leader", "replicas", "isr", "offline", "eligible", "adding", "removing")
    for one in rows:
        lists = (one.replicas, one.in_sync, one.offline, one.eligible, one.adding, one.removing)
        table.add_row(one.topic, str(one.partition), text(one.leader), *map(ids, lists))
    return table


def ids(brokers: Sequence[int] | None) -> str:
    return "-" if brokers is None else ",".join(map(str, brokers))


def summary(facts: ClusterFacts) -> dict[str, Any]:
    """As JSON-ready values; every partition."""
    brokers = []
    for broker in facts.brokers:
        replicas, leads, behind = facts.counts(broker.broker_id)
        brokers.append(
            {
                "broker": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_controller": broker.broker_id == facts.controller,
                "replicas": replicas,
                "leads": leads,
                "out_of_sync": behind,
            }
        )
    return {
        "cluster_id": facts.cluster_id,
        "controller": facts.controller,
        "brokers": brokers,
        "offline": len(facts.offline),
        "under_replicated": len(facts.under_replicated),
        "moving": len(facts.moving),
        "partitions": [partition_summary(one) for one in facts.partitions],
    }


def partition_summary(one: PartitionHolders) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "replicas": list(one.replicas),
        "isr": list(one.in_sync),
        "offline_replicas": list(one.offline),
        "eligible": None if one.eligible is None else list(one.eligible),
        "adding": list(one.adding),
        "removing": list(one.removing),
        "is_offline": one.is_offline,
        "is_under_replicated": one.is_under_replicated,
    }
