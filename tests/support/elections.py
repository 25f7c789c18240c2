"""Leaders that are killed while a client works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logbus.waiting import wait_until

from tests.support.clusters import RunningCluster

PARTITIONS = 2
RECORDS = 1_500
PAUSE_SECONDS = 0.002  # between records: a client sends for some seconds, during which leaders are killed
KILLS = 2


def elect_until(cluster: RunningCluster, topic: str, is_over: Callable[[], bool]) -> int:
    """kill -9 the leader of the first partition, again each time all replicas are in sync, until `is_over`; returns how many."""
    killed = 0
    while killed < KILLS or not is_over():
        leader = wait_until(lambda: max(cluster.state(topic, 0).leader, 0), what=f"the leader of {topic}")
        broker = cluster.brokers[leader]
        broker.kill9()
        broker.start()
        cluster.wait_until_healed(topic)
        killed += 1
    return killed


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Runs a client in a thread; yields a function that returns whether it has finished. Its exception is raised at the end."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield lambda: not thread.is_alive()
    finally:
        thread.join()
    if failed:
        raise failed[0]


def expected(partition: int) -> list[bytes]:
    """What is sent to a partition: the numbers in turn."""
    return [b"%d" % number for number in range(partition, RECORDS, PARTITIONS)]
