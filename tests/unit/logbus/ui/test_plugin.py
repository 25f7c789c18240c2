from __future__ import annotations

import asyncio
import sys

import httpx
import logbus_plugin as module
import pytest
from fastapi import FastAPI
from logbus.provider import HOSTS_VARIABLE


def test_whoever_asks_for_the_applications_has_the_pages_imported() -> None:
    (application,) = module.LogbusPlugin().fastapi_apps
    assert (application["url_prefix"], application["app"]) == ("/logbus", module.pages)
    assert set(module.NEEDED) <= set(sys.modules)


def test_pages_that_cannot_be_imported_take_nothing_else_with_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "NEEDED", ("logbus.no_such_module",))
    with caplog.at_level("ERROR", logger="logbus.ui"):
        assert len(module.LogbusPlugin().fastapi_apps) == 1
    assert "no_such_module" in caplog.text


def status_by_host(host: str) -> int:
    """The status of a request to an application with the plugin's middlewares."""
    app = FastAPI()
    for one in module.LogbusPlugin().fastapi_root_middlewares:
        app.add_middleware(one["middleware"], **one["kwargs"])

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8080") as client:
            return (await client.get("/openapi.json", headers={"Host": host})).status_code

    return asyncio.run(ask())


def test_a_local_airflow_answers_to_no_name_that_a_website_could_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS_VARIABLE, "127.0.0.1,localhost,build.example.com")
    hosts = ("127.0.0.1:8080", "localhost:8080", "build.example.com", "rebound.example.net:8080", "www.localhost")
    assert [status_by_host(host) for host in hosts] == [200, 200, 200, 400, 400]


def test_any_other_airflow_answers_as_it_would_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS_VARIABLE, raising=False)
    assert module.LogbusPlugin().fastapi_root_middlewares == []
