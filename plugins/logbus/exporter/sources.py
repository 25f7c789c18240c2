"""Where the exporter's figures come from, put together in one place: for the command, and for any other server of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from logbus.exporter.kafka_reading import KafkaReader
from logbus.kafka.client import SLOW_SECONDS_MAX, Client
from logbus.warehouse.engine import connect, warehouse_url

# A server that vanishes without closing its connections is noticed in half a minute, not after TCP's default of two hours.
NOTICES = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`deadline_seconds` is below Prometheus' default timeout of ten. A reading is shared until it is `max_age_seconds` old; one
    that is slow goes on past the deadline, for `reading_seconds_max`, and the scrape after it gets it."""

    deadline_seconds: float = 8.0
    max_age_seconds: float = 5.0
    reading_seconds_max: float = SLOW_SECONDS_MAX


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the exporter reads from. `engine` raises `WarehouseUnavailable` while the warehouse is down."""

    engine: Callable[[], Engine]
    kafka: KafkaReader
    now: Callable[[], datetime]
    cluster_name: str | None = None
    monotonic: Callable[[], float] = time.monotonic


def make_sources(
    url: str,
    client_config: Mapping[str, Any],
    now: Callable[[], datetime],
    limits: Limits,
    *,
    cluster_name: str | None = None,
    topic_filter: str = ".*",
    group_filter: str = ".*",
) -> Sources:
    """Connects to nothing yet, so neither server need be up; an invalid URL or pattern is a `UserError` at once."""
    client = Client(client_config, timeout_seconds=limits.deadline_seconds, slow_seconds_max=limits.reading_seconds_max)
    return Sources(
        engine=engine_of(url),
        kafka=KafkaReader(client, topic_filter=topic_filter, group_filter=group_filter),
        now=now,
        cluster_name=cluster_name,
    )


def engine_of(url: str) -> Callable[[], Engine]:
    """Returns the warehouse's engine, which the first call that reaches the server creates."""
    parsed = warehouse_url(url)
    patient = parsed.update_query_dict({name: value for name, value in NOTICES.items() if name not in parsed.query})
    lock, made = threading.Lock(), list[Engine]()

    def engine() -> Engine:
        with lock:
            if not made:
                made.append(connect(patient.render_as_string(hide_password=False)))
            return made[0]

    return engine
