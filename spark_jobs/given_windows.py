"""For Spark programs of others: the windows that SparkSubmitWindowOperator has handed over, as a DataFrame.

    windows = given_windows(os.environ)
    records = read_records(spark, windows, os.environ)

A row for each record of exactly these offsets: window_id, partition, offset, timestamp_ms, key, value, headers. Coming short of
an offset is an error. Programs that have the Kafka connector's jar need none of this: its options are `windows.starting_offsets`
and `windows.ending_offsets`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from logbus.errors import UserError
from logbus.ledger.handover import HandedWindows, parse_text
from logbus.spark_submit import KAFKA_CONFIG_VARIABLE, WINDOWS_VARIABLE
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.packing import pack
from spark_jobs.windows_source import SCHEMA, SOURCE_NAME, windows_source

# Two, so that a core has something to do while its other task waits for the broker.
TASKS_PER_CORE = 2


def given_windows(environ: Mapping[str, str]) -> HandedWindows:
    """The windows this program was started for."""
    return parse_text(variable(environ, WINDOWS_VARIABLE))


def read_records(spark: SparkSession, windows: HandedWindows, environ: Mapping[str, str]) -> DataFrame:
    """All records of the windows. The broker's configuration stays out of Spark's plans and pages."""
    client_config = json.loads(variable(environ, KAFKA_CONFIG_VARIABLE))
    plans = pack(windows.windows, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    if not plans:
        return spark.createDataFrame([], SCHEMA)
    spark.dataSource.register(windows_source(plans, client_config, windows.topic, windows.isolation_level))
    return spark.read.format(SOURCE_NAME).load()


def variable(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise UserError(f"the environment has no {name}: submit this program with SparkSubmitWindowOperator, which sets it")
    return environ[name]
