from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from logbus.model import Pipeline, instant_text
from logbus.operators.maintenance import RedriveOperator

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.ledgers import World, at
from tests.support.loads import Loading
from tests.support.mended import MENDED


@pytest.fixture
def pipeline(world: World) -> Pipeline:
    """Three dead letters, two in hour 10 and one in hour 11; the DAG's parser can now parse them."""
    registered = world.fill(10, 10.2, 10.4, 11.2, 11.5, 12)
    for number in (10, 11):
        Loading.of(world, number, bad_offsets=frozenset({1, 2, 3})).load()
    return replace(registered, parse=MENDED)


def redrive(world: World, pipeline: Pipeline | str, **arguments: Any) -> dict[str, Any]:
    operator = RedriveOperator(task_id="redrive", pipeline=pipeline, **arguments)
    operator.broker = FakeBroker(world.log)  # type: ignore[assignment]
    result: dict[str, Any] = operator.execute(run_context())  # type: ignore[arg-type]
    return result


def dead_letters(world: World, number: int) -> int:
    counts = world.ledger.window("p", at(number)).counts
    assert counts is not None
    return counts.dead_lettered


@pytest.mark.parametrize(("dry_run", "left"), [(False, 0), (True, 2)])
def test_it_redrives_the_runs_own_window_with_the_parser_of_the_dag(
    world: World, pipeline: Pipeline, dry_run: bool, left: int
) -> None:
    result = redrive(world, pipeline, dry_run=dry_run)
    assert (result["tried"], result["loaded"], result["dead_lettered"]) == (2, 2, 0)
    assert [dead_letters(world, number) for number in (10, 11)] == [left, 1]
    assert world.ledger.pipeline("p").parse == MENDED


def test_it_redrives_the_windows_it_is_given(world: World, pipeline: Pipeline) -> None:
    windows = [instant_text(at(number)) for number in (10, 11)]
    result = redrive(world, pipeline, windows=windows)
    assert [window["start"] for window in result["windows"]] == windows
    assert (result["tried"], result["loaded"]) == (3, 3)


def test_a_pipeline_that_is_only_named_keeps_its_parser(world: World, pipeline: Pipeline) -> None:
    result = redrive(world, "p")
    assert (result["loaded"], result["windows"][0]["errors"]) == (0, {"NotUtf8": 2})
    assert world.ledger.pipeline("p").parse == "lines"
