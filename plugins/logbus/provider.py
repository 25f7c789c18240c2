"""What Airflow reads through the entry point `apache_airflow_provider`: the connection type.

Only an installed distribution can register these; the plugin (logbus_plugin.py) cannot. Airflow loads this in every process
it starts, so nothing is imported here.
"""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "logbus_warehouse"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "logbus",
        "name": "logbus",
        "description": "Hourly offset windows of a Kafka topic, loaded exactly once into PostgreSQL by Spark, with proof.",
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "logbus.hooks.warehouse.WarehouseHook",
                "hook-name": "logbus warehouse",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "Host or socket directory",
                        "schema": "Database",
                        "login": "User",
                        "extra": "libpq parameters",
                    },
                    "placeholders": {
                        "host": "warehouse.example.com",
                        "schema": "logbus",
                        "port": "5432",
                        "extra": '{"sslmode": "require"}',
                    },
                },
            }
        ],
    }
