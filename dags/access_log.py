"""An Airflow DAG for the web server's access log: every hour of the topic `access_log` into the table `access_log`."""

from __future__ import annotations

from logbus.pipelines import Pipeline, catch_up, hourly_ingest

ACCESS_LOG = Pipeline(name="access_log", topic="access_log", table="access_log", parse="combined")

ingest = hourly_ingest(ACCESS_LOG)
catchup = catch_up(ACCESS_LOG)
