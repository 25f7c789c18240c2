"""Every metric that a broker shows."""

from __future__ import annotations

from logbus_broker import metrics
from logbus_broker.network import prometheus
from logbus_broker.network.prometheus import Metric

METRICS = tuple(value for module in (prometheus, metrics) for value in vars(module).values() if isinstance(value, Metric))
