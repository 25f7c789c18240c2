"""How many cases a property is tried on: few and always the same ones in `make test`, so that a red run is about the change that
is being tested; new ones each time, LOGBUS_EXAMPLES times as many, in `make soak`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("LOGBUS_EXAMPLES", "1"))
ALWAYS_THE_SAME = "LOGBUS_EXAMPLES" not in os.environ


def examples(count: int) -> int:
    """`count` in `make test`."""
    return count * TIMES
