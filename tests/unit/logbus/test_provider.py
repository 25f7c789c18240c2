from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import airflow
import jsonschema
from logbus.links import WindowLink
from logbus.provider import get_provider_info

# What operators and sensors share, and no author of a DAG imports.
SHARED = {
    *(f"logbus.operators.{name}" for name in ("adoption", "siblings", "spark_window_operator", "window_operator")),
    "logbus.sensors.window_sensor",
}


def test_every_hook_the_provider_names_can_be_imported_and_agrees() -> None:
    for connection in get_provider_info()["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert hook.conn_type == connection["connection-type"]
        assert hook.hook_name == connection["hook-name"]


def test_airflow_finds_the_connection_type_through_the_entry_point() -> None:
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    hook = ProvidersManagerTaskRuntime().hooks["logbus_warehouse"]
    assert hook is not None
    assert hook.package_name == "logbus"


def test_every_module_that_the_provider_lists_is_there_and_none_is_forgotten() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        [listed] = info[kind]
        package = importlib.import_module(f"logbus.{kind}")
        there = {f"logbus.{kind}.{found.name}" for found in pkgutil.iter_modules(package.__path__)}
        assert set(listed["python-modules"]) == there - SHARED
        for name in listed["python-modules"]:
            importlib.import_module(name)


def test_the_links_of_our_tasks_are_registered() -> None:
    assert get_provider_info()["extra-links"] == [f"{WindowLink.__module__}.{WindowLink.__qualname__}"]


def test_what_the_provider_says_is_what_airflow_takes() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
