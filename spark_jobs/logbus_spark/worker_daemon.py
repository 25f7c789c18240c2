"""Spark's worker daemon with our modules imported: the setting `spark.python.daemon.module`.

Every Python worker is forked from the daemon. What is imported here is available at once in all of them; otherwise each
would import it again, which takes longer than a small task.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401  # what the daemon runs in its workers
from pyspark.daemon import manager

import logbus_spark.load_task
import logbus_spark.sinks.postgres  # noqa: F401

if __name__ == "__main__":
    manager()
