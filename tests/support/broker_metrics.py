"""Every metric that a broker shows."""

from __future__ import annotations

from broker import metrics
from broker.network import prometheus
from broker.network.prometheus import Metric

METRICS = tuple(value for module in (prometheus, metrics) for value in vars(module).values() if isinstance(value, Metric))
