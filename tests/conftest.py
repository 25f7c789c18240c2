"""For the whole suite: a home for Airflow that is nobody's own, and the captured wire frames where they are there."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

from tests.support.examples import ALWAYS_THE_SAME, examples

# Airflow reads its home when it is first imported, and some tests import it: never the developer's own.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="logbus-airflow-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")

# Nothing here is timed, and a machine that is busy with something else must not fail a property.
settings.register_profile("logbus", deadline=None, derandomize=ALWAYS_THE_SAME, max_examples=examples(100))
settings.load_profile("logbus")
