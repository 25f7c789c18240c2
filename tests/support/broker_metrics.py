"""Every metric that a broker shows."""

from __future__ import annotations

from broker.metrics import catalogue, process
from broker.metrics.exposition import Metric

CATALOGUE = tuple(value for module in (catalogue, process) for value in vars(module).values() if isinstance(value, Metric))
