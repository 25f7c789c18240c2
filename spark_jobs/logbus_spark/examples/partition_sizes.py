"""An ad hoc Spark program over the windows it is given: how many records and bytes each partition holds.

Submitted by dags/examples/ad_hoc_spark.py. It prints one line of JSON; your own program would write a table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from logbus_spark.given_windows import given_windows, read_records


def main(environ: Mapping[str, str]) -> int:
    windows = given_windows(environ)
    spark = SparkSession.builder.getOrCreate()
    records = read_records(spark, windows, environ)
    sizes = records.groupBy("partition").agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes"))
    by_partition = {row["partition"]: {"records": row["records"], "bytes": row["bytes"]} for row in sizes.collect()}
    print("PARTITION_SIZES " + json.dumps({"pipeline": windows.pipeline, "partitions": by_partition}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
