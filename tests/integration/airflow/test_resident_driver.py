"""The protocol between tasks and a driver that stays, by real processes without Spark; tests/integration/pipeline/test_spark_load.py
has it with Spark."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from logbus import resident_driver
from logbus.errors import LoadFailed, UserError
from logbus.resident_driver import ResidentDriver
from logbus.waiting import wait_until

PROGRAM = [sys.executable, "-m", "tests.support.staying_program"]


class Drivers:
    """Loads by the same driver, or by that of another environment, and what each said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pids: list[int] = []

    def of(self, idle_seconds: float = 600.0, **environment: str) -> ResidentDriver:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return ResidentDriver(
            command=lambda arguments: [*PROGRAM, *arguments],
            environment=environment,
            idle_seconds=idle_seconds,
            directory=self.directory,
        )

    def load(self, *arguments: str, driver: ResidentDriver | None = None) -> tuple[int, Sequence[str]]:
        """The driver's process, and what it said."""
        said: list[str] = []
        try:
            assert (driver or self.of()).load(arguments, said.append)
        finally:
            self.pids += [int(line.removeprefix("process ")) for line in said[:1]]
        return self.pids[-1], said[1:]

    def wait_until_ended(self, pid: int) -> None:
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", what=f"the end of {pid}")


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with tempfile.TemporaryDirectory() as directory:  # short: a socket's path may have about a hundred characters
        running = Drivers(Path(directory))
        yield running
        for pid in running.pids:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()


def test_one_driver_does_one_load_after_the_other(drivers: Drivers) -> None:
    first, said = drivers.load("say", "a", "b")
    assert said == ["a", "b", "this is the log"]
    assert drivers.load("say", "c") == (first, ["c"])


def test_what_is_printed_during_a_load_is_said_at_its_end_and_only_then(drivers: Drivers) -> None:
    assert drivers.load("print", "of the first")[1] == ["this is the log", "of the first"]
    assert drivers.load("print", "of the second")[1] == ["of the second"]
    assert drivers.load("say", "c")[1] == ["c"]


def test_a_load_never_gets_to_a_driver_of_other_rights_or_another_time(drivers: Drivers) -> None:
    plain = drivers.load("say")
    secret = drivers.load("say", driver=drivers.of(LOGBUS_WAREHOUSE_URL="another"))
    longer = drivers.load("say", driver=drivers.of(idle_seconds=601))
    assert len({pid for pid, _ in (plain, secret, longer)}) == 3
    assert "another" not in "".join(path.name for path in drivers.directory.iterdir())


def test_a_driver_of_other_code_is_another_driver(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = drivers.load("say")
    monkeypatch.setattr(resident_driver, "newest_code", lambda: 0.0)
    assert drivers.load("say")[0] != first


def test_a_driver_that_is_at_work_does_not_keep_another_task_waiting(drivers: Drivers) -> None:
    driver = drivers.of()
    with driver.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert driver.load(["say"], print) is False
    said: list[str] = []
    assert driver.load(["say"], said.append) is True
    drivers.pids.append(int(said[0].removeprefix("process ")))


def test_it_ends_when_nothing_comes_and_leaves_no_socket(drivers: Drivers) -> None:
    driver = drivers.of(idle_seconds=0.1)
    pid, _ = drivers.load("say", driver=driver)
    drivers.wait_until_ended(pid)
    assert not driver.path.exists()
    assert drivers.load("say", driver=driver)[0] != pid, "the next load starts another"


@pytest.mark.parametrize(("told", "why"), [("fail", "told to fail"), ("crash", "RuntimeError: crashed as it was told to")])
def test_a_load_that_fails_says_why_and_ends_the_driver(drivers: Drivers, told: str, why: str) -> None:
    with pytest.raises(LoadFailed, match=f"failed with code 1: {why}"):
        drivers.load(told)
    drivers.wait_until_ended(drivers.pids[-1])
    assert drivers.load("say")[0] != drivers.pids[0]


def test_a_driver_can_be_started_before_there_is_anything_to_load_and_ended(drivers: Drivers) -> None:
    driver = drivers.of()
    driver.start()
    wait_until(driver.path.exists, what="the driver")
    pid, _ = drivers.load("say", driver=driver)
    assert drivers.load("say")[0] == pid, "any other load gets to it"
    driver.end(print)
    drivers.wait_until_ended(pid)


def test_a_driver_that_waited_in_vain_is_started_again_and_one_that_ends_at_once_is_not(drivers: Drivers) -> None:
    driver = drivers.of(idle_seconds=0.1)
    driver.start()
    assert driver._process is not None
    first = driver._process.pid
    wait_until(lambda: not driver.path.exists() and driver._log_path.stat().st_size > 0 and has_left(first), what="its end")
    assert drivers.load("say", driver=driver)[0] != first
    ending = ResidentDriver(command=lambda arguments: ["true"], environment={}, idle_seconds=1, directory=drivers.directory)
    ending.start()
    with pytest.raises(LoadFailed, match="ended with code 0 before it was there"):
        ending.load(["say"], print)


def has_left(pid: int) -> bool:
    return psutil.Process(pid).status() == "zombie"


def test_a_load_that_is_given_up_ends_its_driver(drivers: Drivers) -> None:
    driver = drivers.of()
    failed: list[Exception] = []

    def load() -> None:
        try:
            drivers.load("wait", driver=driver)
        except LoadFailed as error:
            failed.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    wait_until(lambda: driver._connection is not None, what="the load")
    driver.abandon()
    loading.join()
    assert "in the middle of the load" in str(failed[0])
    for pid in drivers.pids:
        drivers.wait_until_ended(pid)


def test_a_task_that_is_killed_before_it_has_read_everything_ends_its_driver(drivers: Drivers) -> None:
    """The kernel then reports a reset to the driver, not the end."""
    pid, _ = drivers.load("say")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.connect(str(drivers.of().path))
        killed.sendall(json.dumps(["wait"]).encode() + b"\n")
        wait_until(lambda: b"process" in killed.recv(100, socket.MSG_PEEK), what="what the driver says")
    drivers.wait_until_ended(pid)


def test_a_program_that_does_not_start_is_reported_with_the_end_of_its_log(drivers: Drivers) -> None:
    driver = ResidentDriver(
        command=lambda arguments: [sys.executable, "-c", "print('no Java here'); raise SystemExit(3)"],
        environment={},
        idle_seconds=1,
        directory=drivers.directory,
    )
    with pytest.raises(LoadFailed, match=r"ended with code 3 before it was there; the end of .*\nno Java here"):
        driver.load([], print)


def test_a_place_whose_name_is_too_long_for_a_socket_is_refused_before_spark_is_started(drivers: Drivers) -> None:
    drivers.directory = drivers.directory / ("x" * 60)
    with pytest.raises(UserError, match="set TMPDIR to a place with a shorter name"):
        drivers.load("say")


def test_a_directory_that_others_can_enter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = resident_driver.private_directory()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    with pytest.raises(UserError, match=f"{directory} has to be a directory that only user"):
        resident_driver.private_directory()
