"""How a log file's lines are sent: by `logbus.kafka.producing.Delivery`, tuned for a source that is always ahead of the network.

A callback runs only for a record that fails, not for one that arrives, so a line costs about two microseconds here; lines are
acknowledged all together, at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logbus.errors import DeliveryFailed
from logbus.kafka.client import Client
from logbus.kafka.producing import DEFAULTS, SETTINGS, Delivery
from logbus.waiting import Say, say_nothing

PRODUCER_DEFAULTS: Mapping[str, Any] = {
    **SETTINGS,
    **DEFAULTS,
    "linger.ms": 50,  # full batches
    "delivery.report.only.error": True,
}


def open_delivery(topic: str, client_config: Mapping[str, Any], *, queued_lines_max: int, say: Say = say_nothing) -> Delivery:
    defaults = {**PRODUCER_DEFAULTS, "queue.buffering.max.messages": queued_lines_max}
    return Delivery(Client(client_config, say=say), topic, {}, defaults)


def settle(delivery: Delivery) -> None:
    """Returns when every line sent so far is acknowledged; `DeliveryFailed` otherwise."""
    delivery.settle()
    if delivery.failure is not None:
        delivery.finish()
        raise DeliveryFailed(
            f"topic {delivery.topic}: {delivery.cause()}. Then run again: what was acknowledged is not sent twice"
        )
