from __future__ import annotations

from tests.support.schema_registry import registry  # noqa: F401
