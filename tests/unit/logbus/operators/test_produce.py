from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from logbus.errors import UserError
from logbus.operators.topic import ProduceOperator

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.fake_log import FakeLog


@pytest.fixture
def broker() -> FakeBroker:
    """Keeps what is passed to the producer; the producer itself is tested with real brokers."""
    return FakeBroker(FakeLog.of("t", []))


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


def test_a_function_is_called_when_the_task_runs_and_not_by_airflow_with_its_own_arguments(broker: FakeBroker) -> None:
    """Airflow calls whatever function it finds in a templated attribute."""
    operator = made(broker, numbered, op_kwargs={"count": "{{ params.count }}"})
    operator.render_template_fields({"params": {"count": 2}})
    operator.execute(run_context())
    assert broker.sent == [("t", ["0", "1"])]


def test_a_list_is_still_templated(broker: FakeBroker) -> None:
    operator = made(broker, ["{{ run_id }}", {"value": "{{ run_id }}"}])
    operator.render_template_fields({"run_id": "manual__1"})
    operator.execute(run_context())
    assert broker.sent == [("t", ["manual__1", {"value": "manual__1"}])]


def test_a_function_may_be_mapped(broker: FakeBroker) -> None:
    with DAG("corrections", schedule=None) as dag:
        ProduceOperator.partial(task_id="produce", topic="t", records=numbered).expand(op_kwargs=[{"count": 1}, {"count": 2}])
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("produce").template_fields
    operator = dag.get_task("produce").unmap({"op_kwargs": {"count": 2}})
    operator.broker = broker
    operator.render_template_fields({})
    operator.execute(run_context())
    assert broker.sent == [("t", ["0", "1"])]


def numbered(count: Any) -> list[str]:
    return [str(number) for number in range(int(count))]


def test_a_second_try_sends_the_same(broker: FakeBroker) -> None:
    operator = made(broker, lambda: iter(["a"]))
    operator.execute(run_context())
    operator.execute(run_context(try_number=2))
    assert broker.sent == [("t", ["a"])] * 2


def test_an_iterator_is_refused_because_a_second_try_would_find_it_empty() -> None:
    with pytest.raises(UserError, match="a retry would find exhausted"):
        ProduceOperator(task_id="produce", topic="t", records=iter(["a"]))


@pytest.mark.parametrize("records", [None, lambda: None])
def test_none_is_no_list_of_records(broker: FakeBroker, records: Any) -> None:
    with pytest.raises(UserError, match="records is None"):
        run(broker, records)


@pytest.mark.parametrize("records", ["text", b"bytes", {"value": 1}])
def test_one_record_is_no_list_of_records(broker: FakeBroker, records: Any) -> None:
    with pytest.raises(UserError, match="put it into a list"):
        run(broker, records)
    assert broker.sent == []
