"""`python -m tests.sim --seeds 3000`: plays histories of a cluster, or of one broker; `--seed 17` plays one and prints it."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim import cluster, single
from tests.sim.cluster_faults import CLUSTER_KINDS
from tests.sim.cluster_switches import CLUSTER_SWITCHES
from tests.sim.directed import STORIES
from tests.sim.faults import KINDS
from tests.sim.stage import shortened
from tests.sim.switches import SWITCHES


def main() -> int:
    options = _options()
    gc.freeze()  # what is loaded by now stays; a history leaves little that only the collector finds
    gc.set_threshold(20_000, 20, 20)
    logging.disable(logging.CRITICAL if options.brokers == 1 and options.seed is None else logging.NOTSET)
    # One broker has a simulation of its own: its histories are shorter, and only power cuts may lose anything.
    played_by: Any = single if options.brokers == 1 else cluster
    switches: Any = SWITCHES if options.brokers == 1 else CLUSTER_SWITCHES
    every_kind = sorted(KINDS if options.brokers == 1 else CLUSTER_KINDS)
    kinds = options.fault or ()
    if unknown := [kind for kind in kinds if kind not in every_kind]:
        sys.exit(f"no such fault: {', '.join(unknown)}; there are {', '.join(every_kind)}")
    if options.without and options.without not in switches:
        sys.exit(f"no such rule: {options.without}; there are {', '.join(sorted(switches))}")
    with pytest.MonkeyPatch.context() as patch:
        if options.without:
            switches[options.without].off(patch)
        return _play(options, played_by, _story(options, played_by, switches))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description="plays seeded histories of brokers and checks what clients saw")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3, help="one, or a cluster (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--fault", action="append", help="only this fault (may be repeated)")
    parser.add_argument("--without", help="a rule of the broker that is switched off: it must be noticed")
    parser.add_argument("--story", choices=sorted(STORIES), help="what happens in it, instead of any faults (a cluster's only)")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many (default: %(default)s)")
    return parser.parse_args()


def _story(options: argparse.Namespace, played_by: Any, switches: Any) -> Callable[[int], Any]:
    """How a seed becomes a story: of the given faults, or those that the switched-off rule guards against, or a named one."""
    if options.story:
        return STORIES[options.story]
    if options.without and not options.fault:
        return switches[options.without].story  # type: ignore[no-any-return]
    return lambda seed: played_by.draw_story(seed, tuple(options.fault or ()))


def _play(options: argparse.Namespace, played_by: Any, story: Callable[[int], Any]) -> int:
    counts: Counter[str] = Counter()
    failures, played_count, began = 0, 0, time.monotonic()
    for seed in range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]:
        if played_count and not played_count % 500:
            print(f"{played_count} histories so far, {failures} with anomalies, {time.monotonic() - began:.0f} s", flush=True)
        played_count += 1
        played = played_by.play(story(seed))
        counts.update(played.verdict.counts)
        if options.seed is not None:
            print(played.world.told())
            print(played)
        elif played.kind:
            print(shortened(played, played_by.play), flush=True)
        failures += bool(played.kind)
        if failures >= options.failures:
            break
    counted = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{played_count} histories, {failures} with anomalies, {time.monotonic() - began:.0f} s; in them: {counted}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
