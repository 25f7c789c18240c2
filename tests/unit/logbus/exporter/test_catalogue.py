"""The docs list exactly the metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from logbus.exporter.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", re.MULTILINE)


def test_the_docs_have_every_metric_with_its_kind_labels_and_meaning() -> None:
    rows = [
        (name, kind, labels.strip(), text) for name, kind, labels, text in ROW.findall(PAGE.partition("## The pipeline side")[2])
    ]
    assert rows == [(metric.name, metric.kind, ", ".join(metric.labels), metric.help) for metric in CATALOGUE]


def test_names_are_as_prometheus_wants_them() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.help.endswith("."), metric.name
