"""What holds for every route. Their responses are tested with a real ledger and broker (tests/integration/web)."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from logbus.provider import HOSTS_VARIABLE
from logbus.web import app as module
from logbus.web import details, plugin
from logbus.web.app import STATIC_DIRECTORY, TITLES
from starlette.routing import Route

ROUTES = [route for route in module.app.routes if isinstance(route, Route)]


def ask(method: str, path: str, app: FastAPI = module.app, **headers: str) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://airflow") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_asks_who_is_there(route: Route) -> None:
    path = route.path.format(pipeline="p", start="2015-05-17T10:00:00Z", page="window", topic="t", partition=0, offset=0)
    for method in route.methods or ():
        assert ask(method, path).status_code in (401, 403), path


def test_only_the_two_actions_change_anything() -> None:
    changing = {route.path.rpartition("/")[2] for route in ROUTES if set(route.methods or ()) - {"GET", "HEAD"}}
    assert changing == {"rerun", "redrive"}


@pytest.fixture
def let_in() -> Iterator[None]:
    for dependency in module.app.router.dependencies:
        module.app.dependency_overrides[dependency.dependency] = lambda: None
    yield
    module.app.dependency_overrides.clear()


@pytest.mark.usefixtures("let_in")
@pytest.mark.parametrize("page", TITLES)
def test_a_shell_names_only_files_that_are_there_and_runs_none_but_ours(page: str) -> None:
    shell = ask("GET", f"/ui/{page}")
    files = re.findall(r'(?:src|href)="\.\./static/([^"]+)"', shell.text)
    assert f"{page}.js" in files
    assert [name for name in files if not (STATIC_DIRECTORY / name).exists()] == []
    assert "script-src 'self'" in shell.headers["content-security-policy"]
    assert not re.search(r"<script>|<style>|\son\w+=", shell.text)


@pytest.mark.usefixtures("let_in")
def test_there_is_no_other_page() -> None:
    assert ask("GET", "/ui/passwords").status_code == 404


def test_static_files_are_anybodys_and_asked_for_again_after_an_upgrade() -> None:
    script = ask("GET", "/static/ingestion.js")
    assert script.status_code == 200
    assert "javascript" in script.headers["content-type"]
    assert script.headers["cache-control"] == "no-cache"
    assert ask("GET", "/static/../shell.py").status_code == 404


def test_every_module_that_a_script_imports_is_there() -> None:
    scripts = sorted(STATIC_DIRECTORY.glob("*.js"))
    wanted = {(path.name, name) for path in scripts for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
    assert len(wanted) > len(scripts)
    assert [pair for pair in wanted if not (STATIC_DIRECTORY / pair[1]).exists()] == []


def test_no_script_makes_html_of_text() -> None:
    makers = re.compile(r"\.innerHTML\s*=[^=]|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    assert [path.name for path in STATIC_DIRECTORY.glob("*.js") if makers.search(path.read_text())] == []


def test_airflow_shows_the_page_in_its_navigation_and_on_dags_and_runs() -> None:
    assert {view["destination"]: view["href"] for view in plugin.EXTERNAL_VIEWS} == {
        "nav": "logbus/ui/ingestion",
        "dag": "logbus/ui/ingestion?dag_id={DAG_ID}",
        "dag_run": "logbus/ui/ingestion?dag_id={DAG_ID}&run_id={RUN_ID}",
    }
    assert len({view["url_route"] for view in plugin.EXTERNAL_VIEWS} | {plugin.NAV_ROUTE}) == 3


def test_whoever_asks_for_the_applications_has_the_pages_imported() -> None:
    (application,) = plugin.LogbusPlugin().fastapi_apps
    assert (application["url_prefix"], application["app"]) == ("/logbus", plugin.pages)
    assert set(plugin.NEEDED) <= set(sys.modules)


def test_pages_that_cannot_be_imported_take_nothing_else_with_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "NEEDED", ("logbus.no_such_module",))
    with caplog.at_level("ERROR", logger="logbus.web"):
        assert len(plugin.LogbusPlugin().fastapi_apps) == 1
    assert "no_such_module" in caplog.text


def status_by_host(host: str) -> int:
    """The status of a request to an application with the plugin's middlewares."""
    app = FastAPI()
    for one in plugin.LogbusPlugin().fastapi_root_middlewares:
        app.add_middleware(one["middleware"], **one["kwargs"])

    return ask("GET", "/openapi.json", app, Host=host).status_code


def test_a_local_airflow_answers_to_no_name_that_a_website_could_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS_VARIABLE, "127.0.0.1,localhost,build.example.com")
    hosts = ("127.0.0.1:8080", "localhost:8080", "build.example.com", "rebound.example.net:8080", "www.localhost")
    assert [status_by_host(host) for host in hosts] == [200, 200, 200, 400, 400]


def test_any_other_airflow_answers_as_it_would_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS_VARIABLE, raising=False)
    assert plugin.LogbusPlugin().fastapi_root_middlewares == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(404, json={"detail": "no such Dag"}), "no such Dag"),
        (
            httpx.Response(409, json={"detail": {"reason": "Unique constraint violation", "statement": "hidden"}}),
            "Unique constraint",
        ),
        (httpx.Response(422, json={"detail": [{"loc": ["body"]}]}), "status 422"),
        (httpx.Response(502, text="<html>"), "status 502"),
    ],
)
def test_what_airflow_refuses_is_told_in_its_own_words(answer: httpx.Response, reason: str) -> None:
    assert details.reason_of(answer).startswith(reason)
