from __future__ import annotations

from tests.support.defects import defects  # noqa: F401
from tests.support.engine import closed_harnesses  # noqa: F401
