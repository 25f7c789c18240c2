from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from logbus.ui import app as module
from logbus.ui.shell import STATIC_DIRECTORY, TITLES
from logbus.ui.views import EXTERNAL_VIEWS, NAV_ROUTE


def get(path: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=module.app), base_url="http://airflow") as client:
            return await client.get(path)

    return asyncio.run(ask())


@pytest.fixture
def let_in() -> Iterator[None]:
    for dependency in module.app.router.dependencies:
        module.app.dependency_overrides[dependency.dependency] = lambda: None
    yield
    module.app.dependency_overrides.clear()


@pytest.mark.usefixtures("let_in")
@pytest.mark.parametrize("page", TITLES)
def test_a_shell_names_only_files_that_are_there_and_runs_none_but_ours(page: str) -> None:
    shell = get(f"/ui/{page}")
    files = re.findall(r'(?:src|href)="\.\./static/([^"]+)"', shell.text)
    assert f"{page}.js" in files
    assert [name for name in files if not (STATIC_DIRECTORY / name).exists()] == []
    assert "script-src 'self'" in shell.headers["content-security-policy"]
    assert not re.search(r"<script>|<style>|\son\w+=", shell.text)


@pytest.mark.usefixtures("let_in")
def test_there_is_no_other_page() -> None:
    assert get("/ui/passwords").status_code == 404


def test_static_files_are_anybodys_and_asked_for_again_after_an_upgrade() -> None:
    script = get("/static/ingestion.js")
    assert script.status_code == 200
    assert "javascript" in script.headers["content-type"]
    assert script.headers["cache-control"] == "no-cache"
    assert get("/static/../shell.py").status_code == 404


def test_every_module_that_a_script_imports_is_there() -> None:
    scripts = sorted(STATIC_DIRECTORY.glob("*.js"))
    wanted = {(path.name, name) for path in scripts for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
    assert len(wanted) > len(scripts)
    assert [pair for pair in wanted if not (STATIC_DIRECTORY / pair[1]).exists()] == []


def test_no_script_makes_html_of_text() -> None:
    makers = re.compile(r"\.innerHTML\s*=[^=]|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    assert [path.name for path in STATIC_DIRECTORY.glob("*.js") if makers.search(path.read_text())] == []


def test_airflow_shows_the_page_in_its_navigation_and_on_dags_and_runs() -> None:
    assert {view["destination"]: view["href"] for view in EXTERNAL_VIEWS} == {
        "nav": "logbus/ui/ingestion",
        "dag": "logbus/ui/ingestion?dag_id={DAG_ID}",
        "dag_run": "logbus/ui/ingestion?dag_id={DAG_ID}&run_id={RUN_ID}",
    }
    assert len({view["url_route"] for view in EXTERNAL_VIEWS} | {NAV_ROUTE}) == 3
