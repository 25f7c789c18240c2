from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.windows.rows import definition_of

CLICKS = Pipeline(
    name="clicks",
    topic="web.clicks",
    table="clicks",
    parse="json",
    lateness=timedelta(minutes=7.5),
    starts_at=datetime(2026, 1, 2, tzinfo=UTC),
    settings={"columns": {"url": "text"}, "max_error_rate": 0.01},
)


def changed(**values: object) -> Pipeline:
    return replace(CLICKS, **values)  # type: ignore[arg-type]


def test_what_json_makes_of_settings_and_the_alias_of_a_table_are_no_difference() -> None:
    listed, in_a_tuple = (changed(settings={"filter": {"url": kind(["/"])}}) for kind in (list, tuple))
    assert definition_of(listed) == definition_of(in_a_tuple)
    assert changed(table="public.clicks") == CLICKS
    assert changed(table="web.clicks") != CLICKS


def test_settings_that_the_ledger_cannot_keep_are_an_error_that_says_so() -> None:
    with pytest.raises(UserError, match="kept as JSON"):
        definition_of(changed(settings={"patience": timedelta(1)}))
