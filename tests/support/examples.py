"""How many cases a property is tried on: in `make test` few and always the same ones, so that a failure is due to the change
under test; in `make soak` new ones each time, LOGBUS_EXAMPLES times as many."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("LOGBUS_EXAMPLES", "1"))
ALWAYS_THE_SAME = "LOGBUS_EXAMPLES" not in os.environ


def examples(count: int) -> int:
    """`count` in `make test`."""
    return count * TIMES
