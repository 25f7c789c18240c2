from __future__ import annotations

from datetime import datetime

import pytest
from logbus.errors import AuditMismatch
from logbus.model import AuditReport, PartitionTally, Pipeline
from logbus.operators import audit_window as audit_module
from logbus.operators.audit_window import PROBLEMS_SHOWN_MAX, AuditWindowOperator, audit_failure

from tests.support.airflow_context import HOUR_START, run_context
from tests.support.fake_ledger import FakeLedger, window


def report(start: datetime, *problems: str) -> AuditReport:
    found = {0: PartitionTally(partition=0, loaded=9, dead_lettered=1)}
    return AuditReport(window=window(start, attempt=1), expected={0: 10}, found=found, problems=problems)


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> dict[datetime, str]:
    """What the audit finds, by the window's start."""
    found: dict[datetime, str] = {}

    def audit(engine: object, log: object, name: str, start: datetime, now: datetime, sink_for: object) -> AuditReport:
        return report(start, *([found[start]] if start in found else []))

    monkeypatch.setattr(audit_module, "audit_window", audit)
    return found


def test_an_exact_window_is_counted(pipeline: Pipeline, ledger: FakeLedger, problems: dict[datetime, str]) -> None:
    result = AuditWindowOperator(task_id="audit", pipeline=pipeline).execute(run_context())
    assert result["audited"] == 1
    assert result["windows"][0]["found"] == {"0": 10}


def test_one_wrong_window_of_many_fails_the_run_and_is_named(
    pipeline: Pipeline, ledger: FakeLedger, problems: dict[datetime, str]
) -> None:
    problems[HOUR_START] = "partition 0: 9 rows where 10 are expected"
    windows = ["2015-05-17T09:00:00Z", "2015-05-17T10:00:00Z"]
    with pytest.raises(AuditMismatch, match="2015-05-17T10:00:00Z: partition 0: 9 rows where 10") as failure:
        AuditWindowOperator(task_id="audit", pipeline=pipeline, windows=windows).execute(run_context())
    assert "2015-05-17T09" not in str(failure.value)


def test_a_flood_of_problems_is_cut_with_their_number() -> None:
    text = audit_failure([f"problem {number}" for number in range(PROBLEMS_SHOWN_MAX + 5)], 3)
    assert "and 5 more" in text
    assert f"problem {PROBLEMS_SHOWN_MAX}" not in text
