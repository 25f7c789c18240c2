"""Dashboard and alert rules name only metrics and labels that a running exporter and a running broker export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.broker import LogbusBroker
from tests.support.exported import Exported
from tests.support.exporting import fetch, label_names, samples
from tests.support.promql import named

DOCS = Path(__file__).parents[3] / "docs"
TARGET_LABELS = {"job", "instance"}  # added by Prometheus to everything it scrapes
PROMETHEUS_OWN = {"up": TARGET_LABELS}


def dashboard_expressions() -> list[tuple[str, str]]:
    dashboard: dict[str, Any] = json.loads((DOCS / "grafana" / "logbus.json").read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]


def alert_expressions() -> list[tuple[str, str]]:
    groups = yaml.safe_load((DOCS / "prometheus" / "alerts.yml").read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def known(exported: Exported, broker: LogbusBroker) -> dict[str, set[str]]:
    """The labels of every metric that exporter and broker currently export."""
    address = broker.settings["logbus.metrics.listener"]
    fetch(f"{address}/metrics")  # a closed connection is counted by the next scrape
    shown = [label_names(exported.found), label_names(samples(fetch(f"{address}/metrics"))), PROMETHEUS_OWN]
    names = {name for one in shown for name in one}
    return {name: TARGET_LABELS.union(*(one.get(name, set()) for one in shown)) for name in names}


@pytest.mark.parametrize(("where", "expression"), dashboard_expressions() + alert_expressions())
def test_every_metric_and_label_is_exported(where: str, expression: str, known: dict[str, set[str]]) -> None:
    found = named(expression)
    assert found.metrics, f"{where} asks for nothing"
    assert not set(found.metrics) - set(known), f"{where} names metrics that nobody exports"
    for name, labels in found.metrics.items():
        assert labels <= known[name], f"{where}: {name} has no labels {labels - known[name]}"
    assert found.grouping <= set().union(*(known[name] for name in found.metrics)), where
