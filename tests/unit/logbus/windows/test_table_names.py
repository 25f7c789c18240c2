from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.errors import UserError
from logbus.windows.table_names import check_target, identifier, leaf_name, parse_table, quoted, target_named_after
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import psycopg

TEN = datetime(2015, 5, 17, 10, tzinfo=UTC)


def test_a_table_without_schema_is_public() -> None:
    assert parse_table("access_log").sql == '"public"."access_log"'
    assert parse_table("web.access_log").sql == '"web"."access_log"'


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a.b.c"])
def test_what_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"table or schema\.table"):
        parse_table(name)


@pytest.mark.parametrize("name", ["a\0b", "pg_catalog.x", "pg_mine.x"])
def test_what_postgresql_keeps_for_itself_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no table can be named"):
        parse_table(name)


def test_a_name_that_postgresql_would_cut_is_refused() -> None:
    with pytest.raises(UserError, match="too long"):
        parse_table("t" * 51)
    assert len(leaf_name(parse_table("t" * 50), TEN).name) <= 63


@pytest.mark.parametrize(
    ("given", "table"),
    [
        ("web.clicks", "web.clicks"),
        ("shop.public.orders", "shop_public_orders"),
        ("logbus.window", "logbus_window"),
        (".", "_"),
        ("coredns-5dd5756b68-abcde_kube-system_coredns-" + "0f" * 32, "coredns_5dd5756b68_abcde_kube_system_core_ea53c6bf"),
    ],
)
def test_a_table_can_be_named_after_any_topic(given: str, table: str) -> None:
    assert target_named_after(given) == table
    check_target(table)
    assert len({target_named_after(given * 60 + last) for last in "ab"}) == 2


def test_a_name_cannot_break_out_of_its_quotes() -> None:
    assert quoted('a"; drop table b; --') == identifier('a"; drop table b; --') == '"a""; drop table b; --"'


@pytest.mark.parametrize("name", [":method", "a :b", "a::b", "a\\:b", "a\\\\:b:", "::", "100%", "%(x)s", ':a":b', "a:$b", "a\\"])
def test_a_name_in_a_statement_is_never_a_parameter(name: str) -> None:
    statement = text(f"select {quoted(name)}, :given").compile(dialect=psycopg.dialect())
    assert str(statement).replace("%%", "%") == f"select {identifier(name)}, %(given)s"
    assert list(statement.params) == ["given"]


def test_leaves_of_different_tables_and_hours_have_different_names() -> None:
    hour = timedelta(hours=1)
    names = {leaf_name(parse_table(table), start).name for table in ("t", "web.t", "web_t") for start in (TEN, TEN + hour)}
    assert len(names) == 6
