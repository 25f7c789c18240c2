from __future__ import annotations

from logbus.operators.audit_window import PROBLEMS_SHOWN_MAX, audit_failure


def test_a_flood_of_problems_is_cut_with_their_number() -> None:
    text = audit_failure([f"problem {number}" for number in range(PROBLEMS_SHOWN_MAX + 5)], 3)
    assert "and 5 more" in text
    assert f"problem {PROBLEMS_SHOWN_MAX}" not in text
