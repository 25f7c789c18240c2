from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.ui.parts import Part, answer_of, gzip_of, json_part, object_with_list, part_of

TEXTS = st.lists(st.binary(max_size=300), max_size=8)


@given(texts=TEXTS, repeated=st.integers(1, 40))
def test_parts_in_any_order_are_one_stream(texts: list[bytes], repeated: int) -> None:
    parts = [part_of(text * repeated) for text in texts]
    for order in (parts, parts[::-1], parts * 2):
        assert gzip.decompress(gzip_of(order)) == b"".join(part.text for part in order)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_object_holds_its_fields_and_the_list(count: int) -> None:
    items = [{"name": f"ü{number}", "none": None} for number in range(count)]
    parts = object_with_list({"now": "then", "span": None}, "items", [json_part(item) for item in items])
    assert json.loads(gzip.decompress(gzip_of(parts))) == {"now": "then", "span": None, "items": items}


@pytest.mark.parametrize(("accepted", "is_packed"), [("gzip, deflate, br", True), ("", False), ("identity", False)])
def test_who_takes_no_gzip_gets_none(accepted: str, is_packed: bool) -> None:
    parts: list[Part] = object_with_list({"a": 1}, "b", [json_part(2)])
    response = answer_of(parts, accepted)
    body = bytes(response.body)
    assert ("content-encoding" in response.headers) == is_packed
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["cache-control"] == "no-store"
    assert json.loads(gzip.decompress(body) if is_packed else body) == {"a": 1, "b": [2]}
