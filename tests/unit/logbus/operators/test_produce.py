from __future__ import annotations

from typing import Any

import pytest
from logbus.errors import UserError
from logbus.operators.produce import ProduceOperator

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.fake_log import FakeLog


@pytest.fixture
def broker() -> FakeBroker:
    """Keeps what is passed to the producer; the producer itself is tested with real brokers."""
    log = FakeLog()
    log.create("t")
    return FakeBroker(log)


def made(broker: FakeBroker, records: Any, **arguments: Any) -> ProduceOperator:
    operator = ProduceOperator(task_id="produce", topic="t", records=records, **arguments)
    operator.broker = broker  # type: ignore[assignment]
    return operator


def run(broker: FakeBroker, records: Any, **arguments: Any) -> Any:
    return made(broker, records, **arguments).execute(run_context())


def test_a_list_is_sent_and_so_is_what_a_function_returns(broker: FakeBroker) -> None:
    assert run(broker, ["a", "b"])["records"] == 2
    run(broker, lambda count: (str(number) for number in range(count)), op_kwargs={"count": 3})
    assert broker.sent == [("t", ["a", "b"]), ("t", ["0", "1", "2"])]


def test_a_second_try_sends_the_same(broker: FakeBroker) -> None:
    operator = made(broker, lambda: iter(["a"]))
    operator.execute(run_context())
    operator.execute(run_context(try_number=2))
    assert broker.sent == [("t", ["a"])] * 2


def test_an_iterator_is_refused_because_a_second_try_would_find_it_empty() -> None:
    with pytest.raises(UserError, match="a second try would find empty"):
        ProduceOperator(task_id="produce", topic="t", records=iter(["a"]))


@pytest.mark.parametrize("records", ["text", b"bytes", {"value": 1}])
def test_one_record_is_no_list_of_records(broker: FakeBroker, records: Any) -> None:
    with pytest.raises(UserError, match="put it into a list"):
        run(broker, records)
    assert broker.sent == []
