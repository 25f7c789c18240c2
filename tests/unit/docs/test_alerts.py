"""The alert rules have the form Prometheus expects, and each links to a section that says what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from logbus.waiting import PATIENCE_SECONDS

from benchmarks import processes
from tests.support.programs import program_or_skip
from tests.support.promql import named

DOCS = Path(__file__).parents[3] / "docs"
ALERTS = DOCS / "prometheus" / "alerts.yml"
ALERTMANAGER = DOCS.parent / "docker" / "alertmanager" / "alertmanager.yml"
EXAMPLES = Path(__file__).parent / "alerts_test.yml"
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
DURATION = re.compile(r"[1-9][0-9]*[smhd]")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_a_delay_a_severity_a_sentence_and_a_runbook(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert DURATION.fullmatch(rule["for"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in (DOCS / "operations.md").read_text()


def test_alerts_have_names_of_their_own_and_every_section_an_alert() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert re.findall(r"^### (\w+)$", (DOCS / "operations.md").read_text(), re.MULTILINE) == names


def test_prometheus_scrapes_what_the_alerts_are_about() -> None:
    config = yaml.safe_load((DOCS / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert jobs == set(re.findall(r'job="([\w-]+)"', ALERTS.read_text()))
    assert config["rule_files"] == [ALERTS.name]


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    dashboard = json.loads((DOCS / "grafana" / "logbus.json").read_text())
    assert {"title", "uid", "panels", "templating", "schemaVersion"} <= set(dashboard)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in dashboard["panels"])
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "airflow", "pipeline"}
    assert [link["url"] for link in dashboard["links"]] == ["${airflow}/plugin/logbus-ingestion"]


def test_the_tokenizer_sees_metrics_and_labels_and_nothing_else() -> None:
    expression = 'histogram_quantile(0.99, sum by (le, job) (rate(a_bucket{b="x{y}", c!~"z"}[5m]))) > 6 * 3600 and on (d) e'
    assert named(expression).metrics == {"a_bucket": {"b", "c"}, "e": set()}
    assert named(expression).grouping == {"le", "job", "d"}


def test_promtool_takes_rules_and_configuration() -> None:
    promtool = program_or_skip("promtool")
    for words in (["check", "rules", str(ALERTS)], ["check", "config", str(ALERTS.with_name("prometheus.yml"))]):
        result = processes.run([promtool, *words], seconds_max=PATIENCE_SECONDS)
        assert result.returncode == 0, result.stdout + result.stderr


def test_amtool_takes_where_alerts_go(tmp_path: Path) -> None:
    """Debian's amtool predates `url_file`, so the address itself is put in its place."""
    amtool, path = program_or_skip("amtool"), tmp_path / "alertmanager.yml"
    text, replaced = re.subn(r"url_file: \S+", "url: http://localhost:9/", ALERTMANAGER.read_text())
    assert replaced == 1
    path.write_text(text)
    result = processes.run([amtool, "check-config", str(path)], seconds_max=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool = program_or_skip("promtool")
    examples = yaml.safe_load(EXAMPLES.read_text())
    assert {one["alertname"] for test in examples["tests"] for one in test["alert_rule_test"]} == {
        rule["alert"] for rule in RULES
    }
    result = processes.run([promtool, "test", "rules", str(EXAMPLES)], seconds_max=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
