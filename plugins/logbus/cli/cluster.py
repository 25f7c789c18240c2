"""`logbus cluster`: brokers, leaders, what is wrong, and where replicas are moved, for any Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from logbus.cli import doctor, options, output, replica_moves, topic
from logbus.formatting import many
from logbus.kafka import client, cluster
from logbus.status import checks, cluster_checks

SHOW = "show"


class ShowingGroup(click.Group):
    """`logbus cluster` alone, or with options, is `logbus cluster show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [SHOW, *args])


@click.group("cluster", cls=ShowingGroup)
def command() -> None:
    """Brokers and their replicas: show them, say whether all is well, move replicas, empty a broker. Alone it is show."""


for subcommand in (replica_moves.plan, replica_moves.move, replica_moves.drain):
    command.add_command(subcommand)


@command.command(SHOW)
@click.option("--all", "shows_all", is_flag=True, help="Every partition, not only those with a replica out of sync or moving.")
@options.with_broker
@options.json_option
def show(config: Mapping[str, Any], shows_all: bool, as_json: bool) -> None:
    """Show brokers, the controller, and partitions that are offline, under-replicated or moving.

    Exits with status 5 if a broker or the controller is missing, or a partition has no leader, or a replica that is not in sync.
    """
    facts = cluster.cluster_facts(client.Client.for_question(config))
    reading = cluster_checks.ClusterReading(facts=facts)
    findings = list(cluster_checks.cluster_findings(reading, without=("disk",)))
    if as_json:
        output.show_json(summary(facts, findings))
    else:
        output.show(broker_table(facts))
        rows = facts.partitions if shows_all else [partition for partition in facts.partitions if is_noteworthy(partition)]
        if rows:
            output.show(partition_table(rows))
        output.echo_err(
            f"cluster {topic.text(facts.cluster_id)}: {many(len(facts.brokers), 'broker')}, "
            f"{many(len(facts.partitions), 'partition')}"
        )
    for finding in findings:
        output.echo_err(f"{finding.severity}: {finding.message}")
        output.echo_err(f"    {finding.advice}")
    cluster_checks.raise_if_unwell(reading, findings)


@command.command("health")
@options.with_broker
@options.json_option
def health(config: Mapping[str, Any], as_json: bool) -> None:
    """One line for each matter: controller, brokers, leaders, acks=all, ZooKeeper, disks, throttles left behind, and more.

    Exits with status 5 if a line is an error, or a replica is not in sync; so a script waits with it between two restarts.
    """
    reading = cluster_checks.read_cluster(client.Client.for_question(config))
    findings = cluster_checks.by_matter(reading)
    doctor.tell(findings, as_json)
    cluster_checks.raise_if_unwell(reading, findings)


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


def summary(facts: cluster.ClusterFacts, findings: Sequence[checks.Finding]) -> dict[str, Any]:
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
        "findings": [finding.summary() for finding in findings],
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
