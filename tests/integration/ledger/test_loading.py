from __future__ import annotations

import pytest
from logbus import spark_submit
from logbus.errors import AttemptSuperseded, LoadFailed
from logbus.loading import Load, Loader

from tests.support.ledgers import NOW, World, at

ENDS_WELL = ["true"]  # in place of spark-submit


@pytest.fixture
def loader(world: World, monkeypatch: pytest.MonkeyPatch) -> Loader:
    world.register()
    world.freeze(1)
    monkeypatch.setattr(spark_submit, "command", lambda name, attempts, master: ENDS_WELL)
    url = world.ledger.engine.url.render_as_string(hide_password=False)
    return Loader(warehouse_url=url, client_config={}, now=lambda: NOW, say=lambda line: None)


def test_an_application_that_ends_well_and_commits_nothing_has_not_loaded(world: World, loader: Loader) -> None:
    with pytest.raises(LoadFailed, match="2015-05-17T01:00:00Z: attempt 1 is failed"):
        loader.submit_all(world.ledger, Load(pipeline="p"), [at(1)])


def test_a_load_that_somebody_took_over_says_so(world: World, loader: Loader) -> None:
    attempts = world.ledger.begin_attempts("p", [at(1)], "command line", 1, NOW)
    world.ledger.begin_attempts("p", [at(1)], "another", 1, NOW)
    with pytest.raises(AttemptSuperseded, match="attempt 2 of run another took over from attempt 1 and is at work on it"):
        loader.submit(world.ledger, Load(pipeline="p"), attempts)
