from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from logbus.errors import UserError
from logbus.ledger.table_names import leaf_name, parse_table, quoted

TEN_IN_INDIA = datetime(2015, 5, 17, 15, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))


def test_a_table_without_schema_is_public() -> None:
    assert parse_table("access_log").sql == '"public"."access_log"'
    assert parse_table("web.access_log").sql == '"web"."access_log"'


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c"])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"table or schema\.table"):
        parse_table(text)


def test_a_name_that_postgresql_would_cut_is_refused() -> None:
    with pytest.raises(UserError, match="too long"):
        parse_table("t" * 51)
    assert len(leaf_name(parse_table("t" * 50), TEN_IN_INDIA).name) <= 63


def test_a_name_cannot_break_out_of_its_quotes() -> None:
    assert quoted('a"; drop table b; --') == '"a""; drop table b; --"'


def test_leaves_of_different_tables_and_hours_have_different_names() -> None:
    hour = timedelta(hours=1)
    names = {
        leaf_name(parse_table(table), start).name
        for table in ("t", "web.t", "web_t")
        for start in (TEN_IN_INDIA, TEN_IN_INDIA + hour)
    }
    assert len(names) == 6
    assert leaf_name(parse_table("t"), datetime(2015, 5, 17, 10, tzinfo=UTC)) == leaf_name(parse_table("t"), TEN_IN_INDIA)
