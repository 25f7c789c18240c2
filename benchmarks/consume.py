"""What consuming costs the broker: the same Java client, by assignment, reads the same records from both, in turns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from benchmarks.contest import Contest, contest
from benchmarks.figures import Figure, Target
from benchmarks.loads import DEFAULT_BATCH, Scale
from benchmarks.sides import KAFKA, OPEN_KAFKA, OPEN_LOGBUS, OURS
from benchmarks.turns import compare_costs

RECORDS = 3_000_000
ROUNDS = 5  # short ones: the client is the limit for both, so the ratio is near one and needs more rounds
TOPIC = "read"


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with contest((OPEN_LOGBUS, OPEN_KAFKA), scale, console) as running:
        return consumer_figures(running)


def consumer_figures(running: Contest) -> Sequence[Figure]:
    """Reads all records of one partition from the beginning, after one pass that is not counted."""
    records, names = running.scale.records(RECORDS), (OURS, KAFKA)
    running.measure("filling", lambda side, _: side.produce(DEFAULT_BATCH, TOPIC, records=records), names, rounds=1)
    running.measure("reading once", lambda side, _: side.consume(TOPIC, records=records), names, rounds=1)
    rounds = min(ROUNDS, 2 * running.scale.rounds)
    measured = running.measure("consumer", lambda side, _: side.consume(TOPIC, records=records), names, rounds=rounds)
    pair = measured[OURS], measured[KAFKA]
    return compare_costs("consumer", pair, against=KAFKA, rate=Target(ratio_min=1.0), cpu=Target(ratio_max=0.8))
