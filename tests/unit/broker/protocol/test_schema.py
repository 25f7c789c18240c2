"""What we rely on in the package that contains Kafka's message definitions."""

from __future__ import annotations

import pytest

from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import request_class, response_class
from broker.protocol.message_code import reader, writer
from broker.protocol.schema import read_description


def test_a_description_that_is_not_where_it_is_looked_for_is_named() -> None:
    assert read_description("MetadataRequest"), "this release of kafka-python has moved Kafka's descriptions"
    with pytest.raises(FileNotFoundError, match="NoSuchRequest.json in package 'kafka'"):
        read_description("NoSuchRequest")


@pytest.mark.parametrize("api_key", APIS)
def test_every_version_that_is_offered_compiles_and_is_flexible_where_the_table_says(api_key: int) -> None:
    for kind in (request_class(api_key), response_class(api_key)):
        for version in range(APIS[api_key].first, APIS[api_key].last + 1):
            reader(kind, version), writer(kind, version)
            flexible = version >= APIS[api_key].flexible_from
            assert (version in kind.flexible) == flexible, f"{ApiKey(api_key).name} {version}: the description has changed"
