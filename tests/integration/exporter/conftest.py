from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import LogbusBroker
from tests.support.databases import LedgerDatabases, ledger_databases, warehouse_url  # noqa: F401
from tests.support.exported import Exported, Platform, make_platform
from tests.support.exporting import fetch, running_exporter, samples
from tests.support.postgres import empty_warehouse_url, postgres_server, server_directory  # noqa: F401
from tests.support.scraping import metrics_settings


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("broker"), settings=metrics_settings()) as running:
        yield running


@pytest.fixture(scope="package")
def platform(broker: LogbusBroker, ledger_databases: LedgerDatabases) -> Iterator[Platform]:  # noqa: F811
    name = ledger_databases.take()
    yield make_platform(broker, ledger_databases.url(name), "clicks")
    ledger_databases.give_back(name)


@pytest.fixture(scope="package")
def exported(platform: Platform, broker: LogbusBroker, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The second of two scrapes; the first saw the partitions' end offsets."""
    directory = tmp_path_factory.mktemp("exporter")
    with running_exporter(directory, platform.url, broker.bootstrap, "--max-age", "0", "--cluster-name", "test") as (_, address):
        fetch(f"{address}/metrics")
        text = fetch(f"{address}/metrics")
    return Exported(platform=platform, text=text, found=samples(text))
