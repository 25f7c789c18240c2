"""How many cases a property or a simulation is tried on: LOGBUS_EXAMPLES times its usual number. Up to the usual number the cases
are the same in every run, so that a failure is due to the change under test; beyond it (`make soak`) they are new each time.

What takes less than two seconds keeps its number in a shorter run, and a test that something is noticed takes as many cases as
that needs.
"""

from __future__ import annotations

import os

TIMES = float(os.environ.get("LOGBUS_EXAMPLES", "1"))
ALWAYS_THE_SAME = TIMES <= 1


def examples(count: int, *, at_least: int = 1) -> int:
    return max(at_least, round(count * TIMES))
