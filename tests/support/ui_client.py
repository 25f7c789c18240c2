"""Requests to the pages' application without a socket. The test sets the user and the DAGs that the user may read: Airflow's auth
managers are tested in a real api-server (tests/e2e/test_ui_access.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.core_api.security import get_user
from logbus.waiting import PATIENCE_SECONDS
from logbus.web import app as module
from logbus.web import request_context
from logbus.web.sources import PageSources

from tests.support.ledgers import NOW


@dataclass
class UiClient:
    """`readable` are the DAGs that the user may read, `changeable` those whose runs the user may change, `paused` the paused
    ones; `connections` are those that the user may see."""

    readable: set[str] = field(default_factory=set)
    changeable: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    connections: set[str] = field(default_factory=set)
    now: datetime = NOW
    seconds: float = 0.0

    def wait_for_the_broker(self, seconds: float) -> None:
        """Wait this long for the broker from now on."""
        module.app.state.sources = PageSources(now=lambda: self.now, clock=lambda: self.seconds, broker_timeout_seconds=seconds)

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return self.ask("GET", path, **arguments)

    def json(self, path: str, **parameters: Any) -> dict[str, Any]:
        """Request a page anew, past all caches: the clock moves beyond their age."""
        self.seconds += 100
        response = self.get(path, params=parameters)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=module.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[UiClient]:
    """Connections are found by id in the environment, as in Airflow."""
    made = UiClient()

    def readable(user: Any, dag_ids: Sequence[str]) -> set[str]:
        return made.readable & set(dag_ids)

    monkeypatch.setattr(request_context, "readable_dags", readable)
    monkeypatch.setattr(request_context, "may_change_runs", lambda user, dag_id, method: dag_id in made.changeable)
    monkeypatch.setattr(request_context, "may_read_connection", lambda user, conn_id: conn_id in made.connections)
    monkeypatch.setattr(request_context, "is_paused", lambda dag_id: dag_id in made.paused)
    monkeypatch.setattr(request_context, "paused_dags", lambda dag_ids: sorted(made.paused & set(dag_ids)))
    own = dict(module.app.state._state)
    made.wait_for_the_broker(PATIENCE_SECONDS)
    module.app.state.now = lambda: made.now
    for dependency in module.app.router.dependencies:
        module.app.dependency_overrides[dependency.dependency] = lambda: None
    module.app.dependency_overrides[get_user] = lambda: "somebody"
    yield made
    module.app.dependency_overrides.clear()
    module.app.state._state.update(own)
