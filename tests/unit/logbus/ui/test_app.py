from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from logbus.errors import PipelineUnknown, WarehouseUnavailable, WindowUnknown
from logbus.hooks.warehouse import WarehouseHook
from logbus.ui import app as module
from logbus.windows.model import FrozenWindow

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window

START = "2015-05-17T10:00:00Z"


class Windows:
    """A ledger with one window of `p`."""

    engine = SimpleNamespace(dispose=lambda: None)

    def window(self, pipeline: str, start: datetime) -> FrozenWindow:
        if start != HOUR_START:
            raise WindowUnknown(f"no window that starts at {start} is frozen")
        return window(HOUR_START, attempt=2)

    def windows(self, pipeline: str, since: datetime | None, until: datetime | None) -> list[FrozenWindow]:
        if pipeline != "p":
            raise PipelineUnknown("no pipeline <script> is registered")
        return [window(HOUR_START, attempt=2)]


class Client:
    """Asks the application itself, without a socket."""

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=module.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.get(path, **arguments)

        return asyncio.run(ask())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that is let in; who is let in is Airflow's affair and tried in a real one."""
    monkeypatch.setattr(WarehouseHook, "existing_ledger", lambda hook: Windows())
    for dependency in module.app.router.dependencies:
        module.app.dependency_overrides[dependency.dependency] = lambda: None
    yield Client()
    module.app.dependency_overrides.clear()


def test_programs_get_json_and_browsers_are_led_to_the_page(client: Client) -> None:
    plain = client.get(f"/windows/p/{START}")
    assert plain.json()["fingerprint"] == f"{10:016x}"
    page = client.get(f"/windows/p/{START}", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 303
    assert (
        page.headers["location"]
        == "/plugin/logbus-ingestion/ui/window?pipeline=p&start=2015-05-17T10%3A00%3A00Z&warehouse_conn_id=warehouse_default"
    )


def test_who_is_in_a_frame_already_stays_in_it(client: Client) -> None:
    page = client.get("/windows/p?form=html", headers={"Sec-Fetch-Dest": "iframe"})
    assert page.headers["location"] == "/ui/ingestion?pipeline=p&warehouse_conn_id=warehouse_default"


def test_the_form_can_be_asked_for(client: Client) -> None:
    assert client.get("/windows/p?form=html").status_code == 303
    assert client.get("/windows/p?form=json", headers={"Accept": "text/html"}).json()[0]["start"] == START


@pytest.mark.parametrize(
    ("path", "status"), [("/windows/q", 404), ("/windows/p/2015-05-17T11:00:00Z", 404), ("/windows/p/yesterday", 400)]
)
def test_what_there_is_not_is_said(path: str, status: int, client: Client) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_a_warehouse_that_is_away_is_said_without_where_it_is(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hook: Any) -> None:
        raise WarehouseUnavailable("cannot reach postgresql://secret-host")

    monkeypatch.setattr(WarehouseHook, "existing_ledger", refuse)
    answer = client.get("/windows/p")
    assert answer.status_code == 503
    assert "secret-host" not in answer.text


def test_nothing_can_be_changed(client: Client) -> None:
    methods = {method for route in module.app.routes for method in getattr(route, "methods", ())}
    assert methods <= {"GET", "HEAD"}


def test_every_page_asks_who_is_looking() -> None:
    for path in ("/windows/p", "/ui/ingestion", "/ui/window", "/ui/topics"):
        assert Client().get(path).status_code in (401, 403)
