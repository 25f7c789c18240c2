"""The page: its table, its plot, and the text around them, which is kept."""

from __future__ import annotations

import platform
import re
from xml.etree import ElementTree

import pytest

from benchmarks import report
from benchmarks.figures import figure
from benchmarks.loads import FULL
from benchmarks.plot import svg

FIGURES = [
    figure("producer, batch 50, acks=1: throughput", "records/s", ours=[400_000.0], peer=[300_000.0], against="Apache Kafka"),
    figure("consumer: throughput", "records/s", ours=[1.0], against="Apache Kafka", note="no `mvn` on PATH"),
]

PAPER_BEGIN, PAPER_END = (mark.format(name="paper") for mark in (report.BEGIN, report.END))


@pytest.fixture
def page(tmp_path, monkeypatch):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Before\n\n{PAPER_BEGIN}\nold\n{PAPER_END}\n\n## After\n\n<!-- ingest: begin -->\n<!-- ingest: end -->\n")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return page


def write(page, name, figures):
    report.write(name, figures, FULL, docs=page.parent)


def test_only_the_measured_part_of_the_page_is_replaced(page):
    write(page, "paper", FIGURES)
    write(page, "paper", FIGURES)
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{PAPER_BEGIN}\n")
    assert text.endswith(f"{PAPER_END}\n\n## After\n\n<!-- ingest: begin -->\n<!-- ingest: end -->\n")
    assert "old" not in text
    assert text.count("| consumer: throughput | 1 | missing |") == 1
    assert "- Apache Kafka: no `mvn` on PATH" in text


def test_each_benchmark_has_a_part_of_its_own_and_only_the_paper_a_plot(page):
    write(page, "ingest", FIGURES[1:])
    paper, _, ingest = page.read_text().partition("## After")
    assert ("old" in paper, "| consumer: throughput |" in ingest, "paper.svg" in ingest) == (True, True, False)
    assert not (page.parent / report.PLOT).exists()


def test_a_machine_with_java_names_it(page):
    program = page.parent / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.4\"' >&2\n")
    program.chmod(0o755)
    write(page, "ingest", FIGURES[1:])
    assert 'openjdk version "21.0.4". Medians of 3 rounds' in page.read_text()


def test_a_machine_without_java_is_described_without_it(page):
    write(page, "ingest", FIGURES[1:])
    (told,) = re.findall(r"Python (\S+) \((.+)\)\. Medians of 3 rounds", page.read_text())
    assert told[0] == platform.python_version()
    assert platform.python_compiler() in told[1], "and how it was built"


def test_a_page_that_lost_its_marks_is_not_overwritten(page):
    page.write_text("# Mine\n")
    with pytest.raises(ValueError, match="has no place for paper"):
        write(page, "paper", FIGURES)
    assert page.read_text() == "# Mine\n"


def test_the_plot_has_a_bar_for_each_measured_server_and_none_for_a_missing_one():
    picture = ElementTree.fromstring(svg(report.panels(FIGURES)))
    labels = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"logbus batch 50, acks=1", "Apache Kafka batch 50, acks=1", "400,000", "300,000"} <= set(labels)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}rect"))) == 3  # and ours of the consumer
