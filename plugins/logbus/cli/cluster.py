"""`logbus cluster`: brokers, leaders, and what is wrong, for any Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from logbus.cli import options, output, topic
from logbus.errors import UnderReplicated
from logbus.formatting import many
from logbus.kafka import client, cluster
from logbus.status import broker_checks, checks


@click.command("cluster")
@click.option("--all", "shows_all", is_flag=True, help="Every partition, not only those with a replica out of sync or moving.")
@options.with_broker
@options.json_option
def command(config: Mapping[str, Any], shows_all: bool, as_json: bool) -> None:
    """Show brokers, the controller, and partitions that are offline, under-replicated or moving.

    Exits with status 5 if a broker or the controller is missing, or a partition has no leader, or a replica that is not in sync.
    """
    facts = cluster.cluster_facts(client.Client.for_question(config))
    if as_json:
        output.show_json(summary(facts))
    else:
        output.show(broker_table(facts))
        rows = facts.partitions if shows_all else [partition for partition in facts.partitions if is_noteworthy(partition)]
        if rows:
            output.show(partition_table(rows))
        output.echo_err(
            f"cluster {topic.text(facts.cluster_id)}: {many(len(facts.brokers), 'broker')}, "
            f"{many(len(facts.partitions), 'partition')}"
        )
    findings = list(broker_checks.cluster_findings(facts))
    for finding in findings:
        output.echo_err(f"{finding.severity}: {finding.message}")
        output.echo_err(f"    {finding.advice}")
    offline, behind = len(facts.offline), len(facts.under_replicated)
    if offline or behind:
        raise UnderReplicated(f"{many(offline, 'partition')} without a leader, {behind} with replicas out of sync")
    for finding in findings:
        if finding.severity is checks.Severity.ERROR:
            raise UnderReplicated(finding.message)


def is_noteworthy(partition: cluster.PartitionReplicas) -> bool:
    return partition.is_offline or partition.is_under_replicated or partition.is_moving


def broker_table(facts: cluster.ClusterFacts) -> output.Table:
    table = output.Table(
        "broker", "address", "rack", "controller", "replicas", "leads", "out of sync", "disk free", numbers_from=4
    )
    free = {directory.broker_id: directory.usable_share for directory in facts.directories}
    rows = [(broker.broker_id, f"{broker.host}:{broker.port}", broker.rack) for broker in facts.brokers]
    for broker_id, address, rack in sorted([*rows, *((broker_id, "gone", None) for broker_id in facts.gone)]):
        is_controller = "yes" if broker_id == facts.controller else ""
        share = free.get(broker_id)
        counts = map(str, facts.counts(broker_id))
        room = "-" if share is None else f"{share:.0%}"
        table.add_row(str(broker_id), address, topic.text(rack), is_controller, *counts, room)
    return table


def partition_table(rows: Iterable[cluster.PartitionReplicas]) -> output.Table:
    table = output.Table("topic", "partition", "leader", "replicas", "isr", "offline", "eligible", "adding", "removing")
    for partition in rows:
        lists = (
            partition.replicas,
            partition.in_sync,
            partition.offline,
            partition.eligible,
            partition.adding,
            partition.removing,
        )
        table.add_row(partition.topic, str(partition.partition), topic.text(partition.leader), *map(ids, lists))
    return table


def ids(brokers: Sequence[int] | None) -> str:
    return "-" if brokers is None else ",".join(map(str, brokers))


def summary(facts: cluster.ClusterFacts) -> dict[str, Any]:
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
        "gone": facts.gone,
        "findings": [finding.summary() for finding in broker_checks.cluster_findings(facts)],
        "offline": len(facts.offline),
        "below_min_insync": len(facts.below_insync_min),
        "under_replicated": len(facts.under_replicated),
        "moving": len(facts.moving),
        "partitions": [partition_summary(partition) for partition in facts.partitions],
    }


def partition_summary(partition: cluster.PartitionReplicas) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.in_sync),
        "offline_replicas": list(partition.offline),
        "eligible": None if partition.eligible is None else list(partition.eligible),
        "adding": list(partition.adding),
        "removing": list(partition.removing),
        "is_offline": partition.is_offline,
        "is_under_replicated": partition.is_under_replicated,
    }
