from __future__ import annotations

from typing import Any

import pytest
from logbus.errors import UserError
from logbus.reparsing import reparser_for
from logbus.warehouse.redrive import Refused
from logbus.windows.model import Pipeline


def pipeline(parse: str, **settings: Any) -> Pipeline:
    return Pipeline(name="p", topic="t", table="t", parse=parse, settings=settings)


def test_it_parses_as_a_load_does_with_the_pipelines_settings() -> None:
    parser = reparser_for(pipeline("json", columns={"host": "text", "status": "integer"}))
    assert dict(parser.columns) == {"host": "text", "status": "integer"}
    assert list(parser.parse(b'{"status": 200, "host": "web-1"}')) == ["web-1", 200]


@pytest.mark.parametrize(("value", "kind"), [(b"\xff", "NotUtf8"), (None, "NoValue"), (b"a\0", "NulCharacter")])
def test_what_does_not_parse_is_refused_with_its_class(value: bytes | None, kind: str) -> None:
    with pytest.raises(Refused) as caught:
        reparser_for(pipeline("lines")).parse(value)
    assert caught.value.kind == kind


def test_a_parser_nobody_knows_is_the_callers_mistake() -> None:
    with pytest.raises(UserError):
        reparser_for(pipeline("cobol"))
