from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.ui.parts import answer_of, gzip_of, joined, json_part, object_begun, part_of, rest_of_object

TEXTS = st.lists(st.binary(max_size=300), max_size=8)


@given(texts=TEXTS, repeated=st.integers(1, 40), rest=st.binary(max_size=50))
def test_parts_in_any_order_are_one_stream(texts: list[bytes], repeated: int, rest: bytes) -> None:
    parts = [part_of(text * repeated) for text in texts]
    for order in (parts, parts[::-1], parts * 2):
        assert gzip.decompress(gzip_of(joined(order), part_of(rest))) == b"".join(part.text for part in order) + rest


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_object_holds_the_list_and_its_fields(count: int) -> None:
    items = [{"name": f"ü{number}", "none": None} for number in range(count)]
    begun, rest = object_begun("items", [json_part(item) for item in items]), rest_of_object({"now": "then", "span": None})
    assert json.loads(gzip.decompress(gzip_of(begun, rest))) == {"now": "then", "span": None, "items": items}


@pytest.mark.parametrize(("accepted", "is_packed"), [("gzip, deflate, br", True), ("", False), ("identity", False)])
def test_who_takes_no_gzip_gets_none(accepted: str, is_packed: bool) -> None:
    response = answer_of(object_begun("b", [json_part(2)]), rest_of_object({"a": 1}), accepted)
    body = bytes(response.body)
    assert ("content-encoding" in response.headers) == is_packed
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["cache-control"] == "no-store"
    assert json.loads(gzip.decompress(body) if is_packed else body) == {"a": 1, "b": [2]}
