"""What a benchmark reports: paired ratios, targets, and rows that say why a side is missing."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks import figures
from benchmarks.figures import Target, cells, figure, paired_ratio


def test_the_ratio_is_the_median_of_the_rounds_pair_by_pair():
    assert paired_ratio([10.0, 40.0, 90.0], [10.0, 20.0, 30.0]) == 2.0  # so is the ratio of the medians, but not below
    assert paired_ratio([1.0, 100.0, 30.0], [1.0, 10.0, 30.0]) == 1.0


@pytest.mark.parametrize(("ours", "peer"), [([], [1.0]), ([1.0], []), ([1.0], [0.0])])
def test_a_side_that_is_missing_or_measured_nothing_gives_no_ratio(ours, peer):
    assert paired_ratio(ours, peer) is None


def test_a_missing_peer_keeps_its_row_and_its_reason_and_fails_no_target():
    one = figure("start", "s", ours=[0.2], target=Target(ratio_max=0.1), against="Kafka", note="no `mvn` on PATH")
    assert (one.ours, one.peer, one.ratio, one.held) == (0.2, None, None, None)
    assert cells(one) == ("start", "0.2", "missing", "", "s", "ratio <= 0.1", "", "Kafka")


@pytest.mark.parametrize(
    ("ours", "target", "held"),
    [
        ([2.0], Target(ratio_min=2.0), True),
        ([1.9], Target(ratio_min=2.0), False),
        ([120.0], Target(ours_min=120), True),  # a rate of ours alone
        ([119.0], Target(ours_min=120), False),
        ([], Target(ratio_max=0.1), False),  # a failure of ours
    ],
)
def test_a_target_is_held_up_to_its_bound(ours, target, held):
    assert figure("rate", "1/s", ours=ours, peer=[1.0], target=target).held is held


def test_the_json_is_a_list_of_figures(tmp_path):
    measured = [figure("rate", "1/s", ours=[3.0, 1.0, 2.0], peer=[1.0, 1.0, 1.0], against="Kafka")]
    path = figures.write("some", measured, directory=tmp_path)
    [one] = json.loads(path.read_text())
    assert (one["figure"], one["ours"], one["peer"], one["ratio"], one["against"]) == ("rate", 2.0, 1.0, 2.0, "Kafka")


def test_a_reason_with_brackets_is_printed_as_it_is():
    console = Console(file=io.StringIO(), width=200)
    figures.show("paper", [figure("rate", "1/s", ours=[], against="Kafka", note="said [/id=1] and ended")], console)
    assert "Kafka: said [/id=1] and ended" in console.file.getvalue()
