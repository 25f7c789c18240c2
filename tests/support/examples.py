"""How many cases a property is tried on, LOGBUS_EXAMPLES times as many as it says: in `make test` few (a factor of 0.2, say) and
always the same ones, so that a failure is due to the change under test; in `make soak` more, and new ones each time."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("LOGBUS_EXAMPLES", "1"))
TIMES = max(1, round(FACTOR))
ALWAYS_THE_SAME = FACTOR <= 1


def examples(count: int) -> int:
    """`count` times the factor, and at least one."""
    return max(1, round(count * FACTOR))
