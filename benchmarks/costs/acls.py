"""What ACLs cost a produce request: the same broker, with the authorizer on and without one.

Requests have one small record each, so that the question whether the client may write is as large a part of them as it can be.
The client is User:ANONYMOUS, has the right by a rule of its own, and is no super user; a hundred other rules are for others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType
from logbus.waiting import PATIENCE_SECONDS
from rich.console import Console

from benchmarks.costs.lines import batches_of, log_lines
from benchmarks.costs.load import ROUNDS_PER_ROUND, cpu_per_million, create_topic, produce_all
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker

REQUESTS = 100_000
OTHER_RULES = 100
PRINCIPAL = "User:ANONYMOUS"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
WITH, WITHOUT = "with ACLs", "without"
TOPIC = "lines"


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    requests = scale.records(REQUESTS)
    (batch, *_) = batches_of(log_lines(1, seed=1), now_ms=time.time_ns() // 1_000_000)
    with ExitStack() as stack:
        brokers = {
            WITH: authorized(LogbusBroker(directory / "with"), stack),
            WITHOUT: stack.enter_context(LogbusBroker(directory / "without")),
        }
        create_topic(brokers[WITHOUT].bootstrap, TOPIC)
        costs: dict[str, list[float]] = {name: [] for name in brokers}
        for broker in brokers.values():
            produce_all(broker.bootstrap, TOPIC, [batch], requests=requests // 10)
        for number in range(scale.rounds * ROUNDS_PER_ROUND):
            for name in list(brokers)[:: -1 if number % 2 else 1]:
                broker = brokers[name]
                work = partial(produce_all, broker.bootstrap, TOPIC, [batch], requests=requests)
                costs[name].append(cpu_per_million(broker, requests, work))
                console.print(f"produce, a record a request, {name}: {costs[name][-1]:.2f} s CPU a million", highlight=False)
    yield figure(
        "produce, a record a request, with ACLs: CPU",
        "s/million",
        ours=costs[WITH],
        peer=costs[WITHOUT],
        target=Target(ratio_max=1.03),
        against="logbus, without",
    )


def authorized(broker: LogbusBroker, stack: ExitStack) -> LogbusBroker:
    """Starts it with the authorizer, the topic and the rules. Only while it makes them is the client a super user."""
    broker.settings |= {"authorizer.class.name": AUTHORIZER, "super.users": PRINCIPAL}
    stack.enter_context(broker)
    create_topic(broker.bootstrap, TOPIC)
    rules = [rule(TOPIC, PRINCIPAL, word) for word in (AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE)]
    rules += [rule(f"other-{number}", f"User:other-{number}", AclOperation.WRITE) for number in range(OTHER_RULES)]
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in client.create_acls(rules, request_timeout=PATIENCE_SECONDS).values():
        created.result(PATIENCE_SECONDS)
    broker.settings["super.users"] = "User:nobody"
    broker.restart()
    return broker


def rule(topic: str, principal: str, operation: AclOperation) -> AclBinding:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, literal, principal, "*", operation, allow)
