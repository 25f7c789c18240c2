"""What producing costs the broker: Apache Kafka's own load generator against both, in turns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from benchmarks.contest import Contest, contest
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import BATCH_50, LOADS, Load, Scale
from benchmarks.sides import KAFKA, OPEN_KAFKA, OPEN_LOGBUS, OURS
from benchmarks.turns import Cost, Pair, compare_costs, compare_on_disk

MEMORY = Target(ratio_max=0.1)


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    with contest((OPEN_LOGBUS, OPEN_KAFKA), scale, console) as running:
        figures = [one for load in LOADS for one in producer_figures(load, running)]
        return [*figures, running.memory(KAFKA, MEMORY)]


def producer_figures(load: Load, running: Contest, *, ours: str = OURS) -> Sequence[Figure]:
    """Throughput and CPU of ours against Kafka; the batch of 50 also shows how much disk a record occupies."""
    measured = running.produce(load, (ours, KAFKA))
    pair = measured[ours], measured[KAFKA]
    costs = [
        *compare_costs(load.name, pair, against=KAFKA, rate=load.rate, cpu=load.cpu),
        compare_on_disk(load.name, pair, against=KAFKA),
    ]
    return [*costs, disk_figure(pair, against=KAFKA)] if load is BATCH_50 else costs


def disk_figure(pair: Pair[Cost], *, against: str) -> Figure:
    """The largest of the rounds: deletions by the server during a round only make it smaller."""
    ours, peer = ([max(cost.disk_bytes_per_record for cost in side.rounds)] if side.rounds else [] for side in pair)
    return figure("bytes on disk a message of 200, batch 50", "B", ours=ours, peer=peer, against=against, note=pair[1].reason)
