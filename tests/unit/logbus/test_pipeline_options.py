from __future__ import annotations

from datetime import timedelta

import pytest
from logbus.errors import UserError
from logbus.pipeline_options import as_pipeline, define_pipeline
from logbus.windows.model import Pipeline


def test_topic_and_table_are_called_like_the_pipeline_unless_said_otherwise() -> None:
    assert define_pipeline("clicks", parse="json") == Pipeline(name="clicks", topic="clicks", table="clicks", parse="json")


def test_fields_and_settings_are_both_options_by_name() -> None:
    made = define_pipeline("c", parse="regex", topic="t", lateness=timedelta(0), pattern="(?P<a>.)", settings={"mine": 1})
    assert (made.topic, made.lateness, made.settings) == ("t", timedelta(0), {"pattern": "(?P<a>.)", "mine": 1})


@pytest.mark.parametrize(("option", "advice"), [("max_eror_rate", "did you mean max_error_rate"), ("zzz", "there are lateness")])
def test_an_option_that_nobody_knows_is_an_error_with_advice(option: str, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        define_pipeline("c", parse="json", **{option: 1})


def test_a_pipeline_without_a_parser_is_told_how_to_name_one() -> None:
    with pytest.raises(UserError, match="parse='json'"):
        as_pipeline("c", {})


def test_a_pipeline_that_is_made_takes_no_more_options() -> None:
    made = Pipeline(name="c", topic="c", table="c", parse="json")
    assert as_pipeline(made, {}) is made
    with pytest.raises(UserError, match="defined already"):
        as_pipeline(made, {"sink": "iceberg"})
