"""What Airflow loads by the entry point `airflow.plugins`: it stores no Dag whose timetable no plugin has registered.

The plugin in the folder `plugins` registers it, too, for whoever has that on Airflow's path and has installed nothing.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from logbus.timetable import WindowTimetable


class LogbusTimetables(AirflowPlugin):
    """Registers the timetable of `hourly_ingest`."""

    name = "logbus_timetables"
    timetables = [WindowTimetable]  # as the base has it
