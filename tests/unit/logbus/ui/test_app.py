"""What holds for every route. Their responses are tested with a real ledger and broker (tests/integration/ui)."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from logbus.ui import app as module
from starlette.routing import Route

ROUTES = [route for route in module.app.routes if isinstance(route, Route)]


def ask(method: str, path: str) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=module.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.request(method, path)

    return asyncio.run(send())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_asks_who_is_there(route: Route) -> None:
    path = route.path.format(pipeline="p", start="2015-05-17T10:00:00Z", page="window", topic="t")
    for method in route.methods or ():
        assert ask(method, path).status_code in (401, 403), path


def test_only_the_two_actions_change_anything() -> None:
    changing = {route.path.rpartition("/")[2] for route in ROUTES if set(route.methods or ()) - {"GET", "HEAD"}}
    assert changing == {"rerun", "redrive"}
