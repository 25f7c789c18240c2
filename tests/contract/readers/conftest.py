from __future__ import annotations

from tests.support.spark import load_in_process, spark_session  # noqa: F401
