from __future__ import annotations

import importlib
import json
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator
from airflow.triggers.base import BaseTrigger
from logbus.provider import KINDS, get_provider_info
from logbus.task_context import WindowLink

BASES = {"operators": BaseOperator, "sensors": BaseSensorOperator, "hooks": BaseHook, "triggers": BaseTrigger}


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_that_the_provider_lists_defines_what_it_is_listed_for(kind: str) -> None:
    [listed] = get_provider_info()[kind]
    for name in listed["python-modules"]:
        module = importlib.import_module(name)
        own = [found for found in vars(module).values() if isinstance(found, type) and found.__module__ == name]
        assert any(issubclass(found, BASES[kind]) for found in own), name


def test_the_links_of_our_tasks_are_registered() -> None:
    assert get_provider_info()["extra-links"] == [f"{WindowLink.__module__}.{WindowLink.__qualname__}"]


def test_what_the_provider_says_is_what_airflow_takes() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(get_provider_info())] == []
    assert [error.path[0] for error in validator.iter_errors({**get_provider_info(), "name": 7})] == ["name"]
