"""Spark's worker daemon with our modules imported: the setting `spark.python.daemon.module`.

Every Python worker is forked from the daemon. What is imported here is available at once in all of them; otherwise each
would import it again, which takes longer than a small task. Frozen, it stays in memory that they share, and their garbage
collections do not look at it. On one machine they inherit the driver's environment: its secrets are
none of theirs.
"""

from __future__ import annotations

import gc
import os

import pyspark.worker  # noqa: F401  # what the daemon runs in its workers
from logbus.spark_submit import KAFKA_CONFIG_VARIABLE, WAREHOUSE_URL_VARIABLE
from pyspark.daemon import manager

import logbus_spark.sinks.postgres
import logbus_spark.stream_task  # noqa: F401
from logbus_spark import load_task  # noqa: F401

if __name__ == "__main__":
    for name in (KAFKA_CONFIG_VARIABLE, WAREHOUSE_URL_VARIABLE):
        os.environ.pop(name, None)
    gc.freeze()
    manager()
