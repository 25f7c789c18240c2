"""The parts of the peers' code that need no peer: parsing their tools' output, and why a peer is missing."""

from __future__ import annotations

import pytest

from benchmarks.peers import maven
from benchmarks.peers.generator import Latency, latency_of, records_per_second
from benchmarks.peers.java import ToolFailed, producer_rate
from benchmarks.processes import Missing

SUMMARY = "1000000 records sent, 312500.0 records/sec (59.60 MB/sec), 40.93 ms avg latency, 405.00 ms max latency."


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """Nothing on PATH, nothing in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def test_the_figures_of_a_load_generator_are_its_last_line():
    assert records_per_second('a warning\n{"records": 1000, "seconds": 0.250000}\n') == 4_000.0
    assert latency_of('{"p50_ms": 0.5, "p99_ms": 2.25}\n') == Latency(p50_ms=0.5, p99_ms=2.25)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        *((output, "without its figures") for output in ("", "killed\n", "{\n")),
        ('{"records": 0, "seconds": 0.000000}', "measured nothing"),
    ],
)
def test_a_load_generator_without_figures_has_failed(output, said):
    with pytest.raises(ToolFailed, match=said):
        records_per_second(output)


def test_the_rate_is_read_from_producer_performance():
    assert producer_rate(SUMMARY) == 312_500.0
    with pytest.raises(ToolFailed, match="nothing about records/sec"):
        producer_rate("org.apache.kafka.common.errors.TimeoutException")


def test_a_machine_without_java_is_told_what_to_install(bare_machine):
    with pytest.raises(Missing, match="no `java` on PATH: install a Java runtime"):
        maven.java()
    with pytest.raises(Missing, match="no `javac` on PATH: .* install a JDK"):
        maven.javac()
