"""The real environment of a broker in a cluster, as opposed to that of tests: ZooKeeper, connections to the other brokers, and
the boot id of the machine. Imported only if `zookeeper.connect` is set."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from broker.clock import Clock
from broker.cluster import Outside
from broker.config.settings import BrokerConfig
from broker.coordination.zookeeper import ZooKeeperStore
from broker.errors import BrokerError
from broker.helpers import Helpers
from broker.network.peer import PeerConnections, resolver
from broker.network.poller import Poller

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SESSION_IDS_FIRST_MAX = 1 << 30  # session ids have 31 bits: this leaves as many again to count up


def outside_of(
    config: BrokerConfig,
    helpers: Helpers,
    poller: Poller[Any],
    clock: Clock,
    *,
    wake: Callable[[], None],
    on_fenced: Callable[[BrokerError], None],
) -> Outside:
    """`poller` is the loop's, and `wake` wakes the loop."""
    chance = random.SystemRandom()
    return Outside(
        store=ZooKeeperStore(config.zookeeper_connect, config.zookeeper_session_ms, wake, clock=clock),
        connect=lambda events: PeerConnections(
            config.broker_id,
            events=events,
            poller=poller,
            clock=clock,
            resolve=resolver(helpers),
            jitter=chance.random,
            config=config,
        ),
        boot_id=_boot_id(),
        session_ids=count(chance.randrange(1, _SESSION_IDS_FIRST_MAX)),
        on_fenced=on_fenced,
    )


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
