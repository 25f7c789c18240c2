"""What we rely on in the package that contains Kafka's message definitions."""

from __future__ import annotations

import pytest

from broker.protocol.schema import read_description


def test_a_description_that_is_not_where_it_is_looked_for_is_named() -> None:
    assert read_description("MetadataRequest"), "this release of kafka-python has moved Kafka's descriptions"
    with pytest.raises(FileNotFoundError, match="NoSuchRequest.json in package 'kafka'"):
        read_description("NoSuchRequest")
