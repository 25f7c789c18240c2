"""Every metric that a broker shows."""

from __future__ import annotations

from logbus_broker import metrics
from logbus_broker.metrics import Metric

METRICS = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
