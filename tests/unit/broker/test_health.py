from __future__ import annotations

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.health import Health


def fail(error: Exception) -> None:
    raise error


def test_what_fails_is_a_trouble_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    health = Health()
    for _ in range(3):
        assert not health.attempt("the checkpoint", lambda: fail(StorageError("no space left")))
    assert dict(health.troubles) == {"the checkpoint": "no space left"}
    assert [record.getMessage() for record in caplog.records] == ["the checkpoint failed: no space left"], "told once"
    assert health.attempt("the checkpoint", lambda: None)
    assert dict(health.troubles) == {}
    assert health.defects == 0


def test_what_nobody_expected_is_a_defect_and_a_trouble(defects: list[str]) -> None:
    health = Health()
    assert not health.attempt("the checkpoint", lambda: fail(ZeroDivisionError("division by zero")))
    assert (health.defects, dict(health.troubles)) == (1, {"the checkpoint": "division by zero"})
    assert len(defects) == 1
    defects.clear()
