from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from logbus.errors import PipelineConflict, PipelineUnknown, TopicMissing
from logbus.loads import attempts
from logbus.model import Pipeline
from logbus.windows import registration
from logbus.windows.registration import PipelineRegistration
from logbus.windows.rows import pipeline_of

from tests.support.ledgers import NOW, World, at, stamps


def test_registering_again_changes_nothing_but_what_may_change(world: World) -> None:
    world.register(lateness=timedelta(minutes=5))
    again = world.register(lateness=timedelta(minutes=10), parse="json", settings={"max_errors": 1})
    assert (again.lateness, again.parse, again.settings) == (timedelta(minutes=10), "json", {"max_errors": 1})
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


@pytest.mark.parametrize("name", ["t", "public.t"])
def test_two_names_of_one_table_are_one_table(world: World, name: str) -> None:
    world.register(table=name)
    for alias in ("t", "public.t"):
        with pytest.raises(PipelineConflict, match="table t is loaded by pipeline p"):
            world.register(name="second", table=alias)
    assert world.register(table="public.t").table == world.register(table="t").table == "t"
    assert world.register(name="second", table="web.t").table == "web.t"
    assert world.register(name="third", table="T").table == "T"  # a different table in PostgreSQL


def test_files_in_tables_that_differ_by_case_only_are_one_table(world: World) -> None:
    """Iceberg catalogs and some file systems fold case."""
    files = {"sink": "iceberg", "warehouse": "/data"}
    world.register(table="web.Log", settings=files)
    with pytest.raises(PipelineConflict, match="loaded by pipeline p"):
        world.register(name="second", table="web.log", settings=files)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"sink": "iceberg", "warehouse": "/data/a"}, {"warehouse": "/data/b"}),
        ({"sink": "iceberg", "warehouse": "/lake/a"}, {"warehouse": "/lake/b"}),
        ({"sink": "iceberg", "warehouse": "/lake/a"}, {"catalog": "prod"}),
        ({"sink": "iceberg", "catalog": "prod"}, {"catalog": "test"}),
    ],
)
def test_where_rows_lie_is_fixed_from_the_first_attempt_on(world: World, before: dict[str, str], after: dict[str, str]) -> None:
    world.register(settings=before)
    world.register(settings={**before, **after})  # no rows are stored yet
    world.register(settings=before)
    world.freeze(10)
    world.ledger.begin_attempts("p", [at(10)], "run", 1, NOW)
    with pytest.raises(PipelineConflict, match="its rows lie there"):
        world.register(settings={**before, **after})
    world.register(settings={**before, "max_errors": 5})


def test_a_place_that_is_only_written_otherwise_is_the_same_place(world: World) -> None:
    world.register(settings={"sink": "iceberg", "warehouse": "/lake"})
    world.freeze(10)
    world.ledger.begin_attempts("p", [at(10)], "run", 1, NOW)
    for same in ("/lake/", "file:///lake"):
        assert world.register(settings={"sink": "iceberg", "warehouse": same}).options.warehouse == same


def test_another_sink_is_refused_and_the_default_is_one(world: World) -> None:
    world.register()
    world.register(settings={"sink": "postgres"})
    with pytest.raises(PipelineConflict, match="sink: postgres against iceberg"):
        world.register(settings={"sink": "iceberg", "warehouse": "/data"})


def test_whoever_only_looks_is_shown_what_would_change(world: World) -> None:
    wanted = world.register(settings={"max_errors": 1})
    changed = replace(wanted, parse="json", settings={})
    with pytest.raises(PipelineConflict, match=r"parse: lines -> json; max_errors: 1 -> not given.*--change"):
        world.ledger.define(changed, world.log, NOW, may_change=False)
    assert world.ledger.pipeline("p") == wanted
    assert world.ledger.define(wanted, world.log, NOW, may_change=False).changes == ()
    done = world.ledger.define(changed, world.log, NOW)
    assert (done.is_new, [str(change) for change in done.changes]) == (
        False,
        ["parse: lines -> json", "max_errors: 1 -> not given"],
    )


def test_a_pipeline_that_is_registered_is_registered_again_without_asking_the_broker(world: World) -> None:
    world.register()
    del world.log.topics["t"]
    assert world.register().name == "p"


TWO_COLUMNS = {"columns": {"url": "text", "visitor": "bigint"}, "max_error_rate": 0.01}
ONE_COLUMN = {"columns": {"url": "text"}}


def define(world: World, dag_id: str, settings: dict[str, object]) -> PipelineRegistration:
    pipeline = Pipeline(name="p", topic="t", table="t", parse="json", settings=settings)
    return world.ledger.define(pipeline, world.log, NOW, dag_id=dag_id)


def test_two_dags_that_define_one_pipeline_differently_are_told_apart(world: World) -> None:
    define(world, "hourly", TWO_COLUMNS)
    with pytest.raises(PipelineConflict) as refused:
        define(world, "catchup", ONE_COLUMN)
    assert 'columns: {"url": "text", "visitor": "bigint"} against {"url": "text"}' in str(refused.value)
    assert "max_error_rate: 0.01 against not given" in str(refused.value)
    assert world.ledger.pipeline("p").settings == TWO_COLUMNS
    define(world, "catchup", TWO_COLUMNS)


def test_a_definition_that_two_dags_share_can_be_edited_whichever_runs_first(world: World) -> None:
    for dag_id in ("hourly", "catchup"):
        define(world, dag_id, TWO_COLUMNS)
    assert [change.option for change in define(world, "catchup", ONE_COLUMN).changes] == ["columns", "max_error_rate"]
    assert define(world, "hourly", ONE_COLUMN).changes == ()
    for dag_id in ("hourly", "catchup"):
        define(world, dag_id, TWO_COLUMNS)


def test_a_dag_that_was_not_edited_does_not_take_an_edit_of_another_back(world: World) -> None:
    for dag_id in ("hourly", "catchup"):
        define(world, dag_id, TWO_COLUMNS)
    define(world, "hourly", ONE_COLUMN)
    with pytest.raises(PipelineConflict, match="DAG catchup defines pipeline p otherwise than DAG hourly"):
        define(world, "catchup", TWO_COLUMNS)
    assert world.ledger.pipeline("p").settings == ONE_COLUMN


def test_a_dag_that_is_gone_does_not_block_for_ever(world: World) -> None:
    define(world, "old_name", TWO_COLUMNS)
    with pytest.raises(PipelineConflict, match="logbus pipeline forget-dag p old_name"):
        define(world, "new_name", ONE_COLUMN)
    registration.forget(world.ledger.engine, "p", "old_name")
    define(world, "new_name", ONE_COLUMN)
    with world.ledger.engine.connect() as connection:
        assert registration.dags_by_pipeline(connection) == {"p": ["new_name", "old_name"]}  # kept: decides who may see it
    with pytest.raises(PipelineUnknown, match="these have: new_name, old_name"):
        registration.forget(world.ledger.engine, "p", "nobody")


def test_a_guest_defines_nothing_against_a_dag_that_works_on_the_pipeline(world: World) -> None:
    define(world, "hourly", TWO_COLUMNS)
    pipeline = Pipeline(name="p", topic="t", table="t", parse="json", settings=ONE_COLUMN)
    with pytest.raises(PipelineConflict, match="otherwise than DAG hourly"):
        world.ledger.define(pipeline, world.log, NOW, dag_id="guest", remembers=False)


def test_an_attempt_keeps_the_definition_it_was_begun_with(world: World) -> None:
    wanted = world.register(parse="json", settings=TWO_COLUMNS)
    world.freeze(10)
    (attempt,) = world.ledger.begin_attempts("p", [at(10)], "run", 1, NOW)
    world.register(parse="json", settings=ONE_COLUMN)
    with world.ledger.engine.connect() as connection:
        (found,) = attempts.find(connection, "p", [attempt.token])
    assert found.definition is not None
    assert pipeline_of(found.definition) == wanted


def test_an_attempt_is_not_begun_for_rows_that_would_lie_elsewhere(world: World) -> None:
    wanted = world.register(settings={"sink": "iceberg", "warehouse": "/data/a"})
    world.freeze(10)
    moved = replace(wanted, settings={"sink": "iceberg", "warehouse": "/data/b"})
    for other in (moved, replace(wanted, table="other")):
        with pytest.raises(PipelineConflict):
            world.ledger.begin_attempts("p", [at(10)], "run", 1, NOW, None, other)
