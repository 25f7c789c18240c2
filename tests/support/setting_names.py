"""The names of the broker's settings."""

from __future__ import annotations

from logbus_broker.properties import settings


def setting_names() -> list[str]:
    """Every Kafka name that a configuration file or --override may use."""
    return sorted(item.metadata["name"] for item in settings())
