from __future__ import annotations

import importlib

from logbus.provider import get_provider_info


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
