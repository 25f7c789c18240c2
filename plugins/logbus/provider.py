"""What Airflow reads through the entry point `apache_airflow_provider`: what this package adds to Airflow.

The plugin (web/plugin.py) has an entry point of its own and is not named here, or it would be registered twice. Airflow loads
this in every process it starts, so nothing is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CONNECTION_TYPE = "logbus_warehouse"

# The names by which the api-server may be addressed, with commas between them; without it, by any.
HOSTS_VARIABLE = "LOGBUS_AIRFLOW_HOSTS"

# The warehouse as the api-server reads it for the pages, by a role that may only read; without it, by warehouse_default.
PAGES_WAREHOUSE_VARIABLE = "LOGBUS_PAGES_WAREHOUSE_URL"

INTEGRATION = "logbus"
# By kind: the folder. A trigger stands beside its sensor; `window_event` has none.
KINDS = {"operators": "operators", "sensors": "sensors", "hooks": "hooks", "triggers": "sensors"}
WITHOUT_SENSOR = "window_event"
# Modules that modules of these kinds share; DAG authors do not import them.
SHARED = frozenset({"__init__", "window_operator", "window_sensor"})


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "logbus",
        "name": "logbus",
        "description": "Hourly offset windows of a Kafka topic, loaded exactly once into PostgreSQL by Spark, with proof.",
        **{kind: [integration(kind)] for kind in KINDS},
        "extra-links": ["logbus.task_context.WindowLink"],
        "connection-types": [warehouse_connection()],
    }


def integration(kind: str) -> dict[str, Any]:
    """The modules of a kind, found by their files: importing them takes seconds."""
    folder, left_out = KINDS[kind], SHARED | ({WITHOUT_SENSOR} if kind == "sensors" else set())
    names = sorted(path.stem for path in Path(__file__).with_name(folder).glob("*.py") if path.stem not in left_out)
    return {"integration-name": INTEGRATION, "python-modules": [f"logbus.{folder}.{name}" for name in names]}


def warehouse_connection() -> dict[str, Any]:
    """The connection's form. The broker's is the Kafka provider's own type `kafka`."""
    return {
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
