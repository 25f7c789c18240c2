"""A pipeline's settings: frozen, typed by name, refused where no load could use them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.pipeline_settings import SETTINGS, PipelineSettings
from logbus.windows.registration import validate_pipeline


def pipeline(settings: Any) -> Pipeline:
    return Pipeline(name="p", topic="t", table="t", parse="json", settings=settings)


def test_what_nobody_gave_is_its_default() -> None:
    options = pipeline({}).options
    assert {name: getattr(options, name) for name in SETTINGS} == {name: setting.default for name, setting in SETTINGS.items()}


def test_what_was_given_is_there_by_name_and_by_key() -> None:
    made = pipeline({"sink": "iceberg", "max_errors": 0, "of_my_parser": [1]})
    assert (made.options.sink, made.options.max_errors, made.options.infer) == ("iceberg", 0, False)
    assert made.settings == {"sink": "iceberg", "max_errors": 0, "of_my_parser": [1]}


def test_none_was_not_given() -> None:
    assert pipeline({"sink": None, "columns": None}) == pipeline({})


def test_nobody_changes_them_afterwards() -> None:
    given = {"infer": True}
    made = pipeline(given)
    given["infer"] = False
    assert made.options.infer
    with pytest.raises(TypeError):
        made.settings["infer"] = False  # type: ignore[index]
    with pytest.raises(AttributeError):
        made.options.infer = False  # type: ignore[misc]


def test_they_travel_to_workers() -> None:
    assert pickle.loads(pickle.dumps(pipeline({"sink": "iceberg"}))).options.sink == "iceberg"


@pytest.mark.parametrize("settings", [["columns"], "infer", 7])
def test_settings_that_are_no_mapping_are_refused(settings: Any) -> None:
    with pytest.raises(UserError, match="settings are a mapping"):
        pipeline(settings)


WRONG: dict[str, list[Any]] = {
    "columns": [
        ["host"],
        {"host": "int"},
        {"_mine": "text"},
        {"": "text"},
        {7: "text"},
        {"xmin": "text"},
        {"a\0": "text"},
        {"n" * 64: "text"},
        {"\ud800": "text"},
    ],
    "infer": ["yes", 1],
    "fields": [[], "host", ["a", "a"], [1], ["a", "ctid"], ["_a"]],
    "registry": ["", 8081, "registry:8081", "ftp://registry", "https://", "https://me:secret@registry"],
    "delimiter": ["", ";;", 1],
    "comment": ["", ["#"]],
    "null_value": ["", 0],
    "filter": [{"status": 500}, ["status"]],
    "sink": ["icberg", "parquet"],
    "warehouse": ["", 7],
    "catalog": [""],
    "keep_snapshots_days": [-1, "7", True],
    "max_errors": [-1, 1.5, True],
    "max_error_rate": [5, -0.1, "5%", float("nan")],
    "max_ahead_minutes": [-1, 1441, "60", True, float("nan")],
    "accept_producer_gaps": [0],
    "offset_gaps": ["true"],
}


def test_every_setting_with_values_of_its_own_has_wrong_ones_here() -> None:
    assert {name for name, setting in SETTINGS.items() if setting.check} == WRONG.keys()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_value_that_no_load_could_use_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^pipeline p: .*\b{name}|column"):
        validate_pipeline(pipeline({name: value}))


def test_a_name_that_nobody_knows_belongs_to_the_users_own_parser() -> None:
    validate_pipeline(pipeline({"of_my_parser": object}))
    assert "of_my_parser" not in vars(PipelineSettings)
