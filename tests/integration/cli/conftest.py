from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main

from tests.support.broker import AnyBroker, any_broker
from tests.support.commands import Run
from tests.support.consumers import GROUP_SETTINGS
from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.postgres import empty_warehouse_url, postgres_server, server_directory  # noqa: F401
from tests.support.topics import topic  # noqa: F401


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    """One broker for all commands; its groups do not wait for late members."""
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


@pytest.fixture
def run(broker: AnyBroker) -> Run:
    """Runs a command against the broker; it must exit with `status`."""

    def call(*words: str, status: int = 0, stdin: str | bytes = "") -> Result:
        runner = CliRunner(env={"LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap})
        result = runner.invoke(main, words, input=stdin, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    return call


@pytest.fixture
def new_topic(run: Run, topic: str) -> str:  # noqa: F811
    """An empty topic of one partition."""
    run("topic", "create", topic)
    return topic


@pytest.fixture
def shown(run: Run) -> Callable[..., Any]:
    """The JSON that a command prints."""
    return lambda *words: json.loads(run(*words, "-o", "json").stdout)
