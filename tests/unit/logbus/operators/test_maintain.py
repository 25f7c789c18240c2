from __future__ import annotations

from typing import Any

import pytest
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators import maintain as operators
from logbus.operators.maintain import MaintainOperator

from tests.support.airflow_context import run_context


@pytest.mark.parametrize(("rendered", "pipelines"), [("clicks", ["clicks"]), ("clicks,orders", ["clicks", "orders"]), (None, [])])
def test_pipelines_may_be_text_as_a_template_renders_it(
    monkeypatch: pytest.MonkeyPatch, rendered: str | None, pipelines: list[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda self: None)
    monkeypatch.setattr(operators, "maintain", lambda engine, upkeep, names: asked.append(names) or {})
    operator = MaintainOperator(task_id="maintain", pipelines="{{ params.pipelines }}")
    operator.render_template_fields({"params": {"pipelines": rendered}})
    operator.execute(run_context())
    assert asked == [pipelines]
