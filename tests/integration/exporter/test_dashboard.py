"""Every expression of the dashboard and every alert: it names what a running exporter and a running broker export, and a real
Prometheus that scrapes them answers it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import LogbusBroker
from tests.support.databases import LedgerDatabases
from tests.support.exported import Exported, Platform, make_platform
from tests.support.exporting import fetch, label_names, running_exporter, samples
from tests.support.prometheus_server import PrometheusServer, prometheus
from tests.support.promql import named
from tests.support.scraping import metrics_settings

DOCS = Path(__file__).parents[3] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "logbus.json").read_text())
ALERTS = DOCS / "prometheus" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
TARGETS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
SCRAPES_MIN = 5  # so that a rate has two samples of everything in the first scrape

# Alerts that fire here: an hour whose attempt failed, and a retention run with alarms.
HOLDS_HERE = {"LogbusWindowsFailed", "LogbusRetentionAlarm"}


# Alerts that depend on the machine the tests run on: they are queried, whatever the result.
OF_THE_MACHINE = {"LogbusDiskFull", "LogbusDiskFills", "LogbusBrokerBusy", "LogbusSlowDisk"}


@pytest.fixture(scope="module")
def busy_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    """A separate broker: records arrive while Prometheus scrapes, which other tests on the same broker would see as lag."""
    with LogbusBroker(tmp_path_factory.mktemp("busy"), settings=metrics_settings()) as running:
        yield running


@pytest.fixture(scope="module")
def busy(busy_broker: LogbusBroker, ledger_databases: LedgerDatabases) -> Iterator[Platform]:
    name = ledger_databases.take()
    yield make_platform(busy_broker, ledger_databases.url(name), "clicks")
    ledger_databases.give_back(name)


@pytest.fixture(scope="module")
def server(busy: Platform, busy_broker: LogbusBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    home = tmp_path_factory.mktemp("prometheus")
    (home / "exporter").mkdir()
    options = ("--max-age", "0", "--cluster-name", "test")
    with running_exporter(home / "exporter", busy.url, busy_broker.bootstrap, *options) as (_, exporter):
        targets = {"logbus-exporter": exporter, "logbus-broker": busy_broker.settings["logbus.metrics.listener"]}
        hosts = {job: address.removeprefix("http://") for job, address in targets.items()}
        with prometheus(home / "prometheus", hosts, ALERTS) as running:
            producer = Producer({"bootstrap.servers": busy_broker.bootstrap})
            scrapes = 'count_over_time(up{job="logbus-broker"}[5m])'

            def has_looked() -> bool:
                producer.produce(busy.name, b"while it looks")  # acks=all: waits for a flush, which is counted
                producer.flush(PATIENCE_SECONDS)
                return any(float(one["value"][1]) >= SCRAPES_MIN for one in running.query(scrapes))

            wait_until(has_looked, what=f"{SCRAPES_MIN} scrapes")
            yield running


@pytest.mark.parametrize(("panel", "expression"), TARGETS, ids=[f"{panel}: {expression}" for panel, expression in TARGETS])
def test_a_panel_of_the_dashboard_has_something_to_show(panel: str, expression: str, server: PrometheusServer) -> None:
    asked = expression.replace("$pipeline", ".*")
    assert "$" not in asked
    found = wait_until(lambda: server.query(asked), what=f"{panel}, {asked},")
    numbers = [float(one["value"][1]) for one in found]
    assert all(number == number for number in numbers), f"{panel}: not a number"  # NaN is not itself


def test_the_dashboards_list_of_pipelines_is_theirs(server: PrometheusServer, busy: Platform) -> None:
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "pipeline"]
    assert variable["query"]["query"] == "label_values(logbus_windows, pipeline)"
    assert {one["metric"]["pipeline"] for one in server.query("logbus_windows")} == {busy.name}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alerts_expression_can_be_asked(rule: dict[str, Any], server: PrometheusServer) -> None:
    holds = rule["alert"] in HOLDS_HERE
    server.query(rule["expr"])
    if rule["alert"] not in OF_THE_MACHINE:  # an alert about a scrape too slow on a busy machine clears at the next
        wait_until(lambda: bool(server.query(rule["expr"])) == holds, what=rule["expr"])


def test_prometheus_takes_all_rules_and_each_is_well(server: PrometheusServer) -> None:
    def health() -> set[str]:
        return {rule["health"] for group in server.ask("rules")["groups"] for rule in group["rules"]}

    wait_until(lambda: health() == {"ok"}, what="every rule")


TARGET_LABELS = {"job", "instance"}  # added by Prometheus to everything it scrapes
PROMETHEUS_OWN = {"up": TARGET_LABELS}


@pytest.fixture(scope="module")
def known(exported: Exported, broker: LogbusBroker) -> dict[str, set[str]]:
    """The labels of every metric that exporter and broker currently export."""
    address = broker.settings["logbus.metrics.listener"]
    fetch(f"{address}/metrics")  # a closed connection is counted by the next scrape
    shown = [label_names(exported.found), label_names(samples(fetch(f"{address}/metrics"))), PROMETHEUS_OWN]
    names = {name for one in shown for name in one}
    return {name: TARGET_LABELS.union(*(one.get(name, set()) for one in shown)) for name in names}


@pytest.mark.parametrize(("where", "expression"), [*TARGETS, *((rule["alert"], rule["expr"]) for rule in RULES)])
def test_every_metric_and_label_is_exported(where: str, expression: str, known: dict[str, set[str]]) -> None:
    found = named(expression)
    assert found.metrics, f"{where} asks for nothing"
    assert not set(found.metrics) - set(known), f"{where} names metrics that nobody exports"
    for name, labels in found.metrics.items():
        assert labels <= known[name], f"{where}: {name} has no labels {labels - known[name]}"
    assert found.grouping <= set().union(*(known[name] for name in found.metrics)), where
