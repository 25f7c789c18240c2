"""Choosing a sink from a pipeline's settings."""

from __future__ import annotations

import sys
from pkgutil import resolve_name

import pytest
from logbus.errors import UserError
from logbus.loads.sinks import SINKS, each_sink_once, iceberg_table, sink_for
from logbus.loads.target import COLUMN_TYPES
from logbus.model import Pipeline
from sqlalchemy import create_engine

ENGINE = create_engine("postgresql+psycopg://user:secret@nowhere/logbus")  # does not connect until it is used


def pipeline(**settings: object) -> Pipeline:
    return Pipeline(name="p", topic="t", table="web.t", parse="lines", settings=settings)


def test_a_pipeline_without_a_sink_loads_into_postgresql() -> None:
    assert sink_for(pipeline(), ENGINE).name == "postgres"


@pytest.mark.parametrize("name", SINKS)
def test_every_sink_of_the_table_knows_itself_by_its_name_and_has_a_tasks_side(name: str) -> None:
    assert sink_for(pipeline(sink=name), ENGINE).name == name
    assert callable(resolve_name(f"logbus_spark.sinks.{name}:{name.capitalize()}TaskSink"))


def test_work_on_many_windows_makes_each_pipelines_sink_once() -> None:
    sinks = each_sink_once()
    assert sinks(pipeline(), ENGINE) is sinks(pipeline(), ENGINE)


def test_an_unknown_sink_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="sink 'delta', which is none of postgres, iceberg"):
        sink_for(pipeline(sink="delta"), ENGINE)


def test_a_sink_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pyiceberg")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "logbus.loads.sinks.iceberg", raising=False)
    with pytest.raises(UserError, match=r"pip install 'logbus\[iceberg\]'"):
        sink_for(pipeline(sink="iceberg"), ENGINE)


def test_every_type_that_a_parser_may_declare_has_one_in_every_sink() -> None:
    assert set(iceberg_table.TYPES) == set(COLUMN_TYPES)


def test_a_relative_warehouse_is_refused() -> None:
    with pytest.raises(UserError, match="'lake' is relative"):
        iceberg_table.open_catalog(pipeline(sink="iceberg", warehouse="lake"), ENGINE)


def test_iceberg_needs_a_place_or_a_catalog() -> None:
    with pytest.raises(UserError, match='"warehouse": "/data/lake"'):
        iceberg_table.open_catalog(pipeline(sink="iceberg"), ENGINE)
