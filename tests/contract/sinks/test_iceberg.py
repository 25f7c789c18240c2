"""What only Iceberg has: catalogs, snapshots, other writers of the same table, and a table created outside logbus."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.loads.sinks import iceberg
from logbus.loads.sinks.iceberg_table import open_catalog
from logbus.loads.sinks.snapshot_entry import from_json
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from tests.support.ledgers import at
from tests.support.sinks import HOUR_ELEVEN, HOUR_TEN, Bench, audit, files_of, maintain

pytestmark = pytest.mark.parametrize("bench", ["iceberg"], indirect=True)


def table(bench: Bench) -> Table:
    sink = bench.sink
    assert isinstance(sink, iceberg.IcebergSink)
    return sink.table()


def summary(found: Table) -> dict[str, str]:
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


def test_a_load_is_one_snapshot_that_carries_the_ledger_entry(bench: Bench) -> None:
    bench.start(10, bad=[1]).load()
    bench.start(10, bad=[1]).load()
    found = table(bench)
    assert len(found.snapshots()) == 2
    carried = summary(found)
    assert (carried["logbus.pipeline"], carried["logbus.window"], carried["logbus.attempt"]) == ("p", "2015-05-17T10:00:00Z", "2")
    entry, window = from_json(carried["logbus.entry"]), bench.world.ledger.window("p", at(10))
    assert (entry.counts, entry.fingerprint, entry.ranges) == (window.counts, window.fingerprint, window.ranges)
    assert (carried["added-records"], carried["deleted-records"], carried["total-records"]) == ("3", "3", "3")


def test_the_table_says_until_when_it_was_proven_when_its_last_window_was_committed(bench: Bench) -> None:
    for number, until in ((10, "10:00:00"), (11, "11:00:00"), (10, "10:00:00"), (11, "11:00:00")):
        bench.start(number).load()
        assert table(bench).properties["logbus.complete-until"] == f"2015-05-17T{until}Z"
        assert audit(bench, number).ok
    bench.world.execute('update logbus.anchor set "offset" = "offset" - 1')  # records before the first window
    bench.start(11).load()
    assert "logbus.complete-until" not in table(bench).properties


def test_commits_of_other_windows_meanwhile_are_no_conflict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start(12).load()
    meanwhile(monkeypatch, lambda: bench.start(11).load())
    bench.start(10).load()
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)


def test_rows_that_somebody_adds_to_the_window_meanwhile_are_replaced_and_never_mixed_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start(10).load()

    def add_by_hand() -> None:
        found = table(bench)
        found.append(found.scan(row_filter="_offset = 2").to_arrow())

    meanwhile(monkeypatch, add_by_hand)
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert audit(bench).ok


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Calls `act` once, after a commit has read the table and before it is sent."""
    replace_files, acted = iceberg.replace_files, []

    def act_and_replace(*arguments: Any) -> None:
        if not acted:
            acted.append(True)
            act()
        replace_files(*arguments)

    monkeypatch.setattr(iceberg, "replace_files", act_and_replace)


def test_a_table_that_was_rolled_back_is_loaded_again_and_its_history_counts_as_it_is_now(bench: Bench) -> None:
    bench.start(10).load()
    first = table(bench).current_snapshot()
    assert first is not None
    bench.start(11).load()
    table(bench).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert bench.rows() == HOUR_TEN
    assert not audit(bench, 11).ok
    bench.start(11).load()
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)


def test_snapshots_expire_where_the_pipeline_says_so_and_what_only_they_read_goes_with_them(bench: Bench) -> None:
    for _ in range(3):
        bench.start(10).load()
    bench.start(11).load()
    assert maintain(bench, days=8) == []
    bench.register(keep_snapshots_days=7)
    assert maintain(bench, days=8) == [
        "3 snapshots older than 7 days expired",
        "2 files removed that are not public (any more)",
    ]
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)
    bench.start(10).load()
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)
    assert audit(bench).ok


def test_any_catalog_of_pyicebergs_own_configuration_is_used_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__WAREHOUSE", f"file://{tmp_path}/elsewhere")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when the library is imported
    bench.register(catalog="elsewhere")
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert audit(bench).ok
    assert (tmp_path / "elsewhere").is_dir()


def test_a_warehouse_may_be_a_plain_path(bench: Bench, tmp_path: Path) -> None:
    bench.register(warehouse=f"{tmp_path}/plain")
    bench.start(10).begin().create().run_task(1)
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert [file.number for file in files_of(bench)] == [2]
    assert maintain(bench, days=2) == []
    assert audit(bench).ok


def make_own_table(bench: Bench, **changes: Any) -> None:
    """A table with our schema that does not mention logbus."""
    bench.start(12).begin().create()
    ours = table(bench)
    catalog = open_catalog(bench.world.ledger.pipeline("p"), bench.world.ledger.engine)
    catalog.drop_table(("public", "t"))
    values = {"schema": ours.schema(), "partition_spec": ours.spec(), **changes}
    catalog.create_table(("public", "t"), location=f"{ours.location()}_own", **values)


def test_a_table_of_the_users_own_is_loaded_like_ours(bench: Bench) -> None:
    make_own_table(bench)
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert audit(bench).ok


def test_a_table_of_the_users_own_that_lacks_columns_is_not_altered(bench: Bench) -> None:
    make_own_table(bench)
    bench.register("json", columns={"line": "text", "status": "integer"})
    with pytest.raises(UserError, match="it is yours, so add them: status int"):
        bench.start(10).begin().create()
    assert "status" not in table(bench).schema().column_names


def test_a_table_that_is_not_partitioned_by_window_is_refused(bench: Bench) -> None:
    make_own_table(bench, partition_spec=UNPARTITIONED_PARTITION_SPEC)
    with pytest.raises(UserError, match=r"not partitioned by identity\(_window_start\)"):
        bench.start(10).begin().create()


def test_many_that_make_the_table_at_once_make_one(bench: Bench) -> None:
    with ThreadPoolExecutor(4) as pool:
        sinks = [bench.sink for _ in range(4)]
        list(pool.map(lambda sink: sink.ensure_target({"line": "text"}), sinks))
    assert len({str(sink.table().metadata.table_uuid) for sink in sinks if isinstance(sink, iceberg.IcebergSink)}) == 1
