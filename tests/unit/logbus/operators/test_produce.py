from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.hooks.broker import BrokerHook
from logbus.operators import produce as operators
from logbus.operators.produce import ProduceOperator

from tests.support.airflow_context import run_context
from tests.support.fake_ledger import FakeLedger


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> list[Any]:
    """What was handed to the producer, which is tested with real brokers."""
    calls: list[Any] = []

    def produce(config: dict[str, Any], topic: str, records: Any) -> dict[str, Any]:
        calls.append((topic, list(records)))
        return {"topic": topic, "records": len(calls[-1][1]), "partitions": {}}

    monkeypatch.setattr(operators, "produce", produce)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: SimpleNamespace(topic=lambda name: None))
    return calls


def run(records: Any, **arguments: Any) -> Any:
    return ProduceOperator(task_id="produce", topic="t", records=records, **arguments).execute(run_context())


def test_a_list_is_sent_and_so_is_what_a_function_returns(sent: list[Any]) -> None:
    assert run(["a", "b"])["records"] == 2
    run(lambda count: (str(number) for number in range(count)), op_kwargs={"count": 3})
    assert sent == [("t", ["a", "b"]), ("t", ["0", "1", "2"])]


def test_a_second_try_sends_the_same(sent: list[Any]) -> None:
    operator = ProduceOperator(task_id="produce", topic="t", records=lambda: iter(["a"]))
    operator.execute(run_context())
    operator.execute(run_context(try_number=2))
    assert sent == [("t", ["a"])] * 2


def test_an_iterator_is_refused_because_a_second_try_would_find_it_empty() -> None:
    with pytest.raises(UserError, match="a second try would find empty"):
        ProduceOperator(task_id="produce", topic="t", records=iter(["a"]))


@pytest.mark.parametrize("records", ["text", b"bytes", {"value": 1}])
def test_one_record_is_no_list_of_records(sent: list[Any], records: Any) -> None:
    with pytest.raises(UserError, match="put it into a list"):
        run(records)
    assert sent == []
