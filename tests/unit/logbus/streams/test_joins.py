from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.streams.joins import define_join, join_of_ledger


def test_what_the_ledger_stores_is_the_same_join_of_two_streams_of_rows() -> None:
    join = define_join(
        "paid",
        left="orders",
        right="payments",
        on={"order_id": "order"},
        within="30m",
        kind="left",
        left_columns=["amount"],
        right_columns={"paid": "amount"},
        event_time=("_timestamp", "at"),
        table="shop.paid",
    )
    row = {"name": "paid", "table_name": "shop.paid", "definition": json.loads(json.dumps(join.definition()))}
    assert join_of_ledger(row, *join.sides) == join
    assert [(side.name, side.table, side.pipeline) for side in join.sides] == [
        ("paid_left", "shop.paid_left", "orders"),
        ("paid_right", "shop.paid_right", "payments"),
    ]
    assert [(side.content.columns, side.content.indexed) for side in join.sides] == [
        (("order_id", "amount"), ("order_id",)),
        (("order", "at", "amount"), ("order",)),
    ]
    assert join.words() == "orders left join payments on order_id = order, within 0:30:00"
    assert join.within == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "outer"}, "join 'paid': kind is 'inner', or 'left'"),
        ({"on": {}}, "on is a column of both sides, or a mapping"),
        ({"on": 7}, "on is a column of both sides"),
        ({"within": "0m"}, "within is how far apart"),
        ({"within": "soon"}, "within is how far apart .*; got 'soon'"),
        (
            {"left_columns": ["amount"], "right_columns": ["Amount"]},
            r"the column '[Aa]mount' twice: rename yours, as in right_columns",
        ),
        ({"left_columns": ["is_late"]}, "the column 'is_late' twice"),
        ({"table": "a.b.c"}, "a table is named table or schema.table"),
    ],
)
def test_a_join_that_no_view_could_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        define_join("paid", **{"left": "orders", "right": "payments", "on": "order_id", **changes})
