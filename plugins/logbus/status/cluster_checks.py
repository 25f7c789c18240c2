"""What may be wrong with a cluster, matter by matter: what `logbus cluster`, its `health` and `logbus doctor` say of it; and what
brokers say on their /health pages: logbus's own has one where `logbus.metrics.listener` is set, Apache Kafka none.

A /health page on a broker's loopback is asked for only where that broker's own address is this machine's loopback, too.

A matter has findings, or a sentence for when it has none. What brokers do not say over the wire, such as that ZooKeeper is away
from one of them, or why a log cannot be used, is on their /health pages, where these can be reached.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from logbus import errors
from logbus.errors import LogbusError
from logbus.formatting import many, several
from logbus.kafka import client, cluster, reassignments
from logbus.kafka.client import Client
from logbus.kafka.cluster import LiveBroker
from logbus.status.checks import Finding, Machine, Severity, error, note, ok, room, warning

LISTENER = "logbus.metrics.listener"
SECONDS_MAX = 5.0  # the page is made by the broker's loop, at once
BYTES_MAX = 65_536
OK = "ok"


def troubles(client: Client, brokers: Iterable[LiveBroker]) -> dict[int, tuple[str, ...]]:
    """The lines of each broker whose page can be reached; none where all is well."""
    futures = [(broker, client.ask_broker_settings(broker.broker_id)) for broker in brokers]
    by_broker: dict[int, tuple[str, ...]] = {}
    for broker, future in futures:
        settings: Any = client.outcome(future, str(broker.broker_id))
        if isinstance(settings, LogbusError) or LISTENER not in settings:
            continue
        url = page_url(str(settings[LISTENER].value or ""), broker.host)
        if url is not None and (lines := read_page(url)) is not None:
            by_broker[broker.broker_id] = lines
    return by_broker


def page_url(listener: str, broker_host: str) -> str | None:
    """Where the page of a broker that clients reach at `broker_host` is; None if it has none, or if it is not for us."""
    parts = urlsplit(listener)
    if not parts.port:
        return None
    host = parts.hostname or ""
    if _is_everywhere(host):
        host = broker_host
    elif _is_loopback(host) and not _is_loopback(broker_host):
        return None
    return f"http://{f'[{host}]' if ':' in host else host}:{parts.port}/health"


def read_page(url: str) -> tuple[str, ...] | None:
    """What is wrong there; None without an answer."""
    opener = build_opener(ProxyHandler({}))  # a proxy would look from another machine
    with suppress(OSError, HTTPException):
        try:
            with opener.open(url, timeout=SECONDS_MAX) as answer:
                text = answer.read(BYTES_MAX)
        except HTTPError as unwell:
            text = unwell.read(BYTES_MAX)
        return tuple(line for line in text.decode(errors="replace").splitlines() if line and line != OK)
    return None


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_everywhere(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return not host


# What may be wrong with a cluster, matter by matter: what `logbus cluster`, its `health` and `logbus doctor` say of it.


NAMED_MAX = 5
WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.NOTE, Severity.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """A cluster, throttles that are set in it, and what its brokers say on their health pages: those that can be reached."""

    facts: cluster.ClusterFacts
    throttles: reassignments.Throttles = field(default_factory=reassignments.Throttles)
    troubles: Mapping[int, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """What is wrong, the worst first; `fine` is what is said where nothing is."""

    findings: Callable[[ClusterReading], Iterator[Finding]]
    fine: Callable[[ClusterReading], str]


def read_cluster(asking: client.Client) -> ClusterReading:
    """All of it."""
    facts = cluster.cluster_facts(asking)
    return ClusterReading(
        facts=facts,
        throttles=reassignments.Reassignments(asking).throttles(facts),
        troubles=troubles(asking, facts.brokers),
    )


def check_cluster(machine: Machine) -> Iterator[Finding]:
    """Whether all brokers are there and all replicas in sync."""
    try:
        reading = read_cluster(client.Client.for_question(machine.client_config))
    except (errors.NotAskable, errors.BrokerUnavailable, errors.AccessDenied):
        yield note("cluster", "the broker does not describe its cluster", "logbus doctor --only broker")
        return
    counts = f"{many(len(reading.facts.brokers), 'broker')}, {many(len(reading.facts.partitions), 'partition')}"
    yield from list(cluster_findings(reading, without=("disk",))) or [ok("cluster", counts)]  # disks are a check of their own


def cluster_findings(reading: ClusterReading, *, without: Sequence[str] = ()) -> Iterator[Finding]:
    """What is wrong with a cluster, the worst first; no notes."""
    for name, matter in MATTERS.items():
        if name not in without:
            yield from (finding for finding in matter.findings(reading) if finding.severity is not Severity.NOTE)


def by_matter(reading: ClusterReading) -> list[Finding]:
    """One finding for each matter, whose name is its subject."""
    lines = []
    for name, matter in MATTERS.items():
        findings = list(matter.findings(reading)) or [ok(name, matter.fine(reading))]
        worst = min((finding.severity for finding in findings), key=WORST_FIRST.index)
        advice = "; ".join(dict.fromkeys(finding.advice for finding in findings if finding.advice))
        message = several([finding.message for finding in findings], NAMED_MAX, separator="; ")
        lines.append(Finding(severity=worst, subject=name, message=message, advice=advice))
    return lines


def raise_if_unwell(reading: ClusterReading, findings: Sequence[Finding]) -> None:
    """`UnderReplicated` where no client may rely on this cluster: for scripts that wait until it is whole again."""
    offline, behind = len(reading.facts.offline), len(reading.facts.under_replicated)
    if offline or behind:
        raise errors.UnderReplicated(f"{many(offline, 'partition')} without a leader, {behind} with replicas out of sync")
    for finding in findings:
        if finding.severity is Severity.ERROR:
            raise errors.UnderReplicated(finding.message)


# The matters


def _controller(reading: ClusterReading) -> Iterator[Finding]:
    if reading.facts.controller is None:
        message = "there is no controller: leaders, topics and settings stay as they are"
        yield error("cluster", message, "brokers cannot reach ZooKeeper, or none has been elected yet: their /health says which")


def _brokers(reading: ClusterReading) -> Iterator[Finding]:
    facts = reading.facts
    for live_broker in facts.brokers:
        if live_broker.broker_id in facts.unreachable:
            message = f"broker {live_broker.broker_id} accepts no connection at {live_broker.host}:{live_broker.port}"
            yield error("cluster", message, "start it again, or correct its advertised.listeners; its log says why it ended")
    for broker in facts.gone:
        replicas, _, behind = facts.counts(broker)
        message = f"broker {broker} is gone: {many(replicas, 'replica')}, {behind} of them not in sync"
        yield error("cluster", message, f"start it again; if it is lost for good: logbus cluster drain {broker}")


def _leaders(reading: ClusterReading) -> Iterator[Finding]:
    if reading.facts.offline:
        advice = "start the brokers that have its replicas: logbus cluster lists them"
        yield error("cluster", f"no leader, so no client can read or write: {named(reading.facts.offline)}", advice)


def _minimum(reading: ClusterReading) -> Iterator[Finding]:
    below = reading.facts.below_insync_min
    if below:
        advice = "bring the brokers back that are out of sync: logbus cluster lists them"
        yield error("cluster", f"fewer in sync than min.insync.replicas, so acks=all fails: {named(below)}", advice)


def _logs(reading: ClusterReading) -> Iterator[Finding]:
    live = {broker.broker_id for broker in reading.facts.brokers}
    failed = [part for part in reading.facts.partitions if live.intersection(part.offline)]
    if failed:
        yield error("cluster", f"a live broker has no usable log of {named(failed)}", "its /health and its log say why")


def _in_sync(reading: ClusterReading) -> Iterator[Finding]:
    facts = reading.facts
    for broker in sorted(live_broker.broker_id for live_broker in facts.brokers):
        replicas, _, behind = facts.counts(broker)
        catching_up = sum(part.is_moving and broker in part.adding for part in facts.partitions)
        if behind > catching_up:
            advice = "it has just died, or catches up after a start; if neither, its log and its /health say why"
            yield warning("cluster", f"broker {broker} is not in sync in {behind} of {many(replicas, 'replica')}", advice)


def _internal_topics(reading: ClusterReading) -> Iterator[Finding]:
    facts = reading.facts
    few = [part for part in facts.partitions if part.topic == cluster.OFFSETS_TOPIC and not part.is_moving]
    few = [part for part in few if len(part.replicas) < min(facts.offsets_factor or 0, len(facts.brokers))]
    if few:
        message = f"{cluster.OFFSETS_TOPIC} has fewer than offsets.topic.replication.factor={facts.offsets_factor} replicas"
        yield warning("cluster", f"{message} in {many(len(few), 'partition')}", "add some: logbus cluster move FILE")


ZOOKEEPER = "ZooKeeper"


def _zookeeper(reading: ClusterReading) -> Iterator[Finding]:
    if not reading.troubles:
        advice = "curl http://HOST:PORT/health at each broker, of its logbus.metrics.listener; brokers of Apache Kafka have none"
        yield note("cluster", "no broker shows its /health to this machine", advice)
    advice = "start more of its servers, and compare zookeeper.connect; if its data was lost: docs/cluster.md"
    for brokers, line in _said_by_brokers(reading):
        if ZOOKEEPER in line:
            yield error("cluster", f"{brokers}: {line}", advice)


def _health(reading: ClusterReading) -> Iterator[Finding]:
    for brokers, line in _said_by_brokers(reading):
        if ZOOKEEPER not in line:
            yield error("cluster", f"{brokers}: {line}", "docs/at-three-in-the-morning.md has what to type")


DURATION = re.compile(r" for \d+ s\b")


def _said_by_brokers(reading: ClusterReading) -> Iterator[tuple[str, str]]:
    """Each line with those who say it, however long it has lasted for each."""
    by_text: dict[str, dict[int, str]] = {}
    for broker, lines in sorted(reading.troubles.items()):
        for line in lines:
            by_text.setdefault(DURATION.sub("", line), {})[broker] = line
    for said_by in by_text.values():
        yield f"broker {', '.join(map(str, said_by))}", next(iter(said_by.values()))


def _disk(reading: ClusterReading) -> Iterator[Finding]:
    findings = map(room, reading.facts.directories)
    yield from (finding for finding in findings if finding.severity in (Severity.ERROR, Severity.WARNING))


def _throttles(reading: ClusterReading) -> Iterator[Finding]:
    throttles = reading.throttles
    if throttles and not reading.facts.moving:
        brokers = f"{many(len(throttles.brokers), 'broker')} and {many(len(throttles.topics), 'topic')}"
        yield warning(
            "cluster", f"nothing moves, but {brokers} are still throttled", "logbus cluster move --execute removes that"
        )


def _moves(reading: ClusterReading) -> Iterator[Finding]:
    if reading.facts.moving:
        message = f"{many(len(reading.facts.moving), 'partition')} being moved: {named(reading.facts.moving)}"
        yield note("cluster", message, "logbus cluster move --execute --wait looks on")


def _fine_disk(reading: ClusterReading) -> str:
    free = [share for directory in reading.facts.directories if (share := directory.usable_share) is not None]
    return f"at least {min(free):.0%} free" if free else "brokers do not report how full they are"


def _fine_brokers(reading: ClusterReading) -> str:
    numbers = [str(broker.broker_id) for broker in reading.facts.brokers]
    return f"{many(len(numbers), 'broker')}: {', '.join(numbers)}"


MATTERS: Mapping[str, Matter] = {
    "controller": Matter(findings=_controller, fine=lambda reading: f"broker {reading.facts.controller}"),
    "brokers": Matter(findings=_brokers, fine=_fine_brokers),
    "leaders": Matter(
        findings=_leaders, fine=lambda reading: f"{many(len(reading.facts.partitions), 'partition')}, none without a leader"
    ),
    "acks=all": Matter(findings=_minimum, fine=lambda reading: "no partition is below min.insync.replicas"),
    "logs": Matter(findings=_logs, fine=lambda reading: "no live broker has one that it cannot use"),
    "replicas": Matter(findings=_in_sync, fine=lambda reading: "those of all live brokers are in sync"),
    "internal topics": Matter(findings=_internal_topics, fine=lambda reading: "have the replicas that are set"),
    ZOOKEEPER: Matter(findings=_zookeeper, fine=lambda reading: f"no complaint from {_listed(reading.troubles)}"),
    "health": Matter(findings=_health, fine=lambda reading: f"no complaint from {_listed(reading.troubles)}"),
    "disk": Matter(findings=_disk, fine=_fine_disk),
    "throttles": Matter(findings=_throttles, fine=lambda reading: "in use" if reading.throttles else "none"),
    "moves": Matter(findings=_moves, fine=lambda reading: "none"),
}


def _listed(brokers: Mapping[int, Sequence[str]]) -> str:
    return f"broker {', '.join(map(str, sorted(brokers)))}" if brokers else "any broker that shows its /health"


def named(partitions: Sequence[cluster.PartitionReplicas]) -> str:
    return several([f"{part.topic}-{part.partition}" for part in partitions], NAMED_MAX)
