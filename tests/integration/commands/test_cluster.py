"""`logbus cluster` against a real broker: a single broker is a healthy cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Shown = Callable[..., Any]


def test_a_broker_alone_is_shown_with_all_that_it_leads(run: Run, shown: Shown, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    facts = shown("cluster")
    (broker,) = facts["brokers"]
    assert broker["is_controller"]
    assert broker["leads"] == broker["replicas"] == len(facts["partitions"])
    assert (facts["offline"], facts["under_replicated"], facts["moving"]) == (0, 0, 0)
    mine = [one for one in facts["partitions"] if one["topic"] == topic]
    assert [(one["partition"], one["leader"], one["isr"], one["eligible"]) for one in mine] == [
        (index, broker["broker"], [broker["broker"]], []) for index in (0, 1)
    ]
    text = run("cluster", "--all").stdout
    assert topic in text
    assert topic not in run("cluster").stdout
