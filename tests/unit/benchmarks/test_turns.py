"""Measuring in turns: neighbours in each round, and a run that goes on when an entrant fails."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.peers.java import ToolFailed
from benchmarks.turns import Cost, Measured, compare_costs, in_turns


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


def test_each_round_runs_every_entrant_once(console):
    seen = []
    entrants = {name: lambda number, name=name: seen.append((number, name)) for name in "ab"}
    in_turns("load", entrants, rounds=2, console=console)
    assert seen == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_an_entrant_that_fails_keeps_its_reason_and_the_others_go_on(console):
    def fails_in_the_second_round(number: int) -> int:
        if number == 1:
            raise ToolFailed("no acknowledgement")
        return number

    measured = in_turns("load", {"bad": fails_in_the_second_round, "good": int}, rounds=3, console=console)
    assert measured["good"].rounds == [0, 1, 2]
    assert (measured["bad"].rounds, measured["bad"].reason) == ([], "ToolFailed: no acknowledgement")


def test_a_mistake_of_ours_is_not_taken_for_a_failure_of_a_peer(console):
    with pytest.raises(ZeroDivisionError):
        in_turns("load", {"bug": lambda _: 1 / 0}, rounds=1, console=console)


def test_costs_are_compared_per_million_records():
    ours = Measured(rounds=[Cost(records=1_000_000, records_per_second=500_000.0, cpu_seconds=1.0, disk_bytes=210_000_000)])
    peer = Measured(rounds=[Cost(records=100_000, records_per_second=50_000.0, cpu_seconds=1.0, disk_bytes=40_000_000)])
    rate, cpu = compare_costs("producer", (ours, peer), against="RabbitMQ")
    assert (rate.ratio, cpu.ours, cpu.peer, cpu.ratio) == (10.0, 1.0, 10.0, 0.1)
    assert (ours.rounds[0].disk_bytes_per_record, peer.rounds[0].disk_bytes_per_record) == (210.0, 400.0)


def test_both_reasons_are_told():
    rate, _ = compare_costs("producer", (Measured(reason="died"), Measured(reason="no `mvn`")), against="Kafka")
    assert rate.note == "ours failed: died; no `mvn`"
