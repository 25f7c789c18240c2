"""docs/protocol-support.md lists what broker/logbus_broker/protocol/api.py supports, no more and no less."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from logbus_broker.protocol.api import APIS
from logbus_broker.protocol.codec import request_class
from logbus_broker.settings import IgnoredSettings

PAGE = Path(__file__).parents[4] / "docs" / "protocol-support.md"
ROW = re.compile(r"\| (?P<key>\d+) \| (?P<name>\w+) \| (?P<first>\d+)(?:-(?P<last>\d+))? \|")


def test_the_page_lists_every_key_with_its_name_and_versions() -> None:
    rows = {int(row["key"]): row for row in ROW.finditer(PAGE.read_text())}
    listed = {key: (int(row["first"]), int(row["last"] or row["first"])) for key, row in rows.items()}
    assert listed == {int(key): (api.first, api.last) for key, api in APIS.items()}
    assert {key: row["name"] for key, row in rows.items()} == {
        int(key): request_class(key).__name__.removesuffix("Request") for key in APIS
    }


def test_the_page_says_why_a_setting_is_ignored() -> None:
    table = PAGE.read_text().partition("## Settings that are accepted and ignored")[2].partition("\n## ")[0]
    ignored = {name for item in fields(IgnoredSettings) for name in (item.metadata["name"], item.metadata["topic"]) if name}
    assert set(re.findall(r"`([a-z4.]+)`", table)) == {
        *ignored,
        "min.insync.replicas",
        "retention.ms",
        "retention.bytes",
        "false",
    }


def test_transactions_are_not_offered() -> None:
    assert not {24, 25, 26, 28} & APIS.keys()
