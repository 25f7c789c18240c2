from __future__ import annotations

from collections.abc import Iterator

import pytest
from logbus.loads.embedded import EmbeddedPostgres

from tests.proof.bench import Bench
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.postgres import postgres_server, server_directory  # noqa: F401


@pytest.fixture(scope="session")
def bench_of_the_session(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:  # noqa: F811
    bench = Bench(postgres_server.create_database("proof"), tmp_path_factory.mktemp("proof"))
    yield bench
    bench.close()


@pytest.fixture
def bench(bench_of_the_session: Bench, without_spark: None) -> Bench:  # noqa: F811
    return bench_of_the_session
