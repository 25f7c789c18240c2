from __future__ import annotations

from tests.support.defects import defects  # noqa: F401
