"""Measuring in turns: entrants run next to each other in each round, and a run continues when one fails."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.peers.java import ToolFailed
from benchmarks.turns import Cost, Measured, compare_costs, compare_on_disk, in_turns


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


def nothing() -> None:
    """No preparation of the machine."""


def test_each_round_runs_every_entrant_once_and_every_second_the_other_way_round(console):
    seen = []
    entrants = {name: lambda number, name=name: seen.append((number, name)) for name in "ab"}
    in_turns("load", entrants, rounds=3, console=console, prepare=lambda: seen.append("prepared"))
    assert seen[::2] == ["prepared"] * 6
    assert seen[1::2] == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_an_entrant_that_fails_keeps_its_reason_and_the_others_go_on(console):
    def fails_in_the_second_round(number: int) -> int:
        if number == 1:
            raise ToolFailed("no acknowledgement")
        return number

    measured = in_turns("load", {"bad": fails_in_the_second_round, "good": int}, rounds=3, console=console, prepare=nothing)
    assert measured["good"].rounds == [0, 1, 2]
    assert (measured["bad"].rounds, measured["bad"].reason) == ([], "ToolFailed: no acknowledgement")


def test_a_mistake_of_ours_is_not_taken_for_a_failure_of_a_peer(console):
    with pytest.raises(ZeroDivisionError):
        in_turns("load", {"bug": lambda _: 1 / 0}, rounds=1, console=console, prepare=nothing)


def test_costs_are_compared_per_million_records():
    ours = Measured(rounds=[Cost(records=1_000_000, records_per_second=500_000.0, cpu_seconds=1.0, disk_bytes=210_000_000)])
    peer = Measured(rounds=[Cost(records=100_000, records_per_second=50_000.0, cpu_seconds=1.0, disk_bytes=40_000_000)])
    rate, cpu = compare_costs("producer", (ours, peer), against="RabbitMQ")
    assert (rate.ratio, cpu.ours, cpu.peer, cpu.ratio) == (10.0, 1.0, 10.0, 0.1)
    assert (ours.rounds[0].disk_bytes_per_record, peer.rounds[0].disk_bytes_per_record) == (210.0, 400.0)
    rate, _ = compare_costs("producer", (Measured(reason="died"), Measured(reason="no `mvn`")), against="Kafka")
    assert rate.note == "ours failed: died; no `mvn`"


def test_what_the_kernel_writes_later_counts_for_the_comparison_until_it_is_on_disk():
    def cost(own: float, until_on_disk: float) -> Measured[Cost]:
        parts = {"records": 500_000, "records_per_second": 1.0, "disk_bytes": 1}
        return Measured(rounds=[Cost(**parts, cpu_seconds=own, on_disk_cpu_seconds=until_on_disk)])

    figure = compare_on_disk("producer", (cost(1.0, 1.0), cost(1.0, 2.0)), against="Kafka")
    assert (figure.ours, figure.peer, figure.ratio) == (2.0, 4.0, 0.5)
