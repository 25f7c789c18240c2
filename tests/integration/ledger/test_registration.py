from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from logbus.errors import PipelineConflict, PipelineUnknown, TopicMissing, UserError

from tests.support.ledgers import World, at, stamps


def test_registering_again_changes_nothing_but_what_may_change(world: World) -> None:
    world.register(lateness=timedelta(minutes=5))
    again = world.register(lateness=timedelta(minutes=10), parse="json", settings={"accept_loss": True})
    assert (again.lateness, again.parse, again.settings) == (timedelta(minutes=10), "json", {"accept_loss": True})
    assert world.ledger.pipelines() == [again]


@pytest.mark.parametrize(
    "change", [{"topic": "other"}, {"table": "other"}, {"interval": timedelta(minutes=30)}, {"starts_at": at(3)}]
)
def test_what_decides_the_windows_cannot_change_under_a_name(world: World, change: dict[str, object]) -> None:
    world.log.create("other")
    world.register()
    with pytest.raises(PipelineConflict, match="choose another name"):
        world.register(**change)


def test_two_pipelines_cannot_share_a_table(world: World) -> None:
    world.register()
    with pytest.raises(PipelineConflict, match="loaded by pipeline p"):
        world.register(name="second")


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": timedelta(minutes=7)},
        {"interval": timedelta(seconds=30)},
        {"isolation_level": "dirty"},
        {"lateness": timedelta(-1)},
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused(world: World, wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="pipeline p"):
        world.register(**wrong)


def test_a_topic_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(TopicMissing, match="nowhere"):
        world.register(topic="nowhere")


def test_an_unknown_pipeline_says_how_to_make_one(world: World) -> None:
    world.register()
    with pytest.raises(PipelineUnknown, match="logbus pipeline register"):
        world.ledger.pipeline("q")


def test_many_may_make_the_same_ledger_and_pipeline_at_once(world: World) -> None:
    world.log.append("t", *stamps(10, 11))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: world.register(), range(8)))
    assert found == [found[0]] * 8
