"""The plugin Airflow finds in its plugins folder. Everything lives in the package `logbus` beside it."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class LogbusPlugin(AirflowPlugin):
    """Puts this folder on Airflow's path, by being found in it."""

    name = "logbus"
