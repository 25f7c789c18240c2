"""Real child processes under real watchdogs: however the parent ends, they end too."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from logbus.cli.processes import (
    STARTS_MAX,
    Program,
    ReservedPorts,
    StackError,
    SupervisedProcess,
    Supervisor,
    accepts_connections,
    end_leftovers,
    running_watchdog,
    started_at,
)
from logbus.waiting import PATIENCE_SECONDS, wait_until

# A program that ignores SIGTERM, with a child in a new session, as a careless server might start it.
STUBBORN = "trap '' TERM; (setsid sh -c 'echo $$ >orphan; exec sleep 600' &); echo $$ >leader; while true; do sleep 1; done"


def program(directory: Path, script: str, *, name: str = "program", grace_seconds: float = 0.2) -> Program:
    return Program(
        name=name,
        command=["sh", "-c", script],
        environment=os.environ,
        directory=directory,
        working_directory=directory,
        grace_seconds=grace_seconds,
    )


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().strip() != "", what=f"{path.name} written")
    return int(path.read_text())


def gone(*pids: int) -> bool:
    return all(started_at(pid) is None for pid in pids)


def test_a_program_that_ends_by_itself_gives_its_status_and_its_log(tmp_path: Path) -> None:
    process = SupervisedProcess(program(tmp_path, "echo a word; exit 3"))
    assert process.wait(PATIENCE_SECONDS) == 3
    with pytest.raises(StackError, match=r"(?s)ended with status 3.*a word"):
        wait_until(lambda: False, what="the broker", processes=[process])
    with pytest.raises(StackError, match=r"(?s)ended with status 1.*no database"):
        Supervisor().run(program(tmp_path, "echo no database; exit 1"), PATIENCE_SECONDS)


def test_a_program_that_ends_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    supervisor, said = Supervisor(), list[str]()
    supervisor.start(program(tmp_path, "echo no room; exit 3"))
    supervisor.start(program(tmp_path, "exec sleep 600", name="other"))
    with pytest.raises(StackError, match=r"(?s)program ended with status 3.*no room"):
        wait_until(lambda: supervisor.keep_up(said.append), what="the last start")
    assert len(said) == STARTS_MAX
    assert [process.exit_code for process in supervisor.processes] == [3, None]
    supervisor.end()


def test_ending_takes_the_stubborn_program_and_its_detached_child(tmp_path: Path) -> None:
    process = SupervisedProcess(program(tmp_path, STUBBORN))
    leader, orphan = pid_in(tmp_path / "leader"), pid_in(tmp_path / "orphan")
    process.end()
    assert gone(leader, orphan)
    assert not process.program.pid_path.exists()


def test_a_child_left_behind_by_a_program_that_ended_is_ended_too(tmp_path: Path) -> None:
    process = SupervisedProcess(program(tmp_path, "(setsid sh -c 'echo $$ >orphan; exec sleep 600' &); sleep 0.3"))
    orphan = pid_in(tmp_path / "orphan")
    assert process.wait(PATIENCE_SECONDS) == 0
    assert gone(orphan)


def test_a_polite_program_is_given_its_grace(tmp_path: Path) -> None:
    script = "trap 'echo tidied; exit 0' TERM; echo up; while true; do sleep 0.05; done"
    process = SupervisedProcess(program(tmp_path, script, grace_seconds=PATIENCE_SECONDS))
    wait_until(lambda: "up" in process.log_tail(), what="the program")
    process.end()
    assert process.log_tail().splitlines()[-1] == "tidied"


def test_nothing_survives_an_owner_killed_with_sigkill(tmp_path: Path) -> None:
    owner = f"""
        import os, time
        from pathlib import Path
        from logbus.cli.processes import Program, SupervisedProcess
        place = Path({str(tmp_path)!r})
        SupervisedProcess(Program(name="program", command=["sh", "-c", {STUBBORN!r}], environment=os.environ,
                                  directory=place, working_directory=place, grace_seconds=0.2))
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(owner)])
    leader, orphan = pid_in(tmp_path / "leader"), pid_in(tmp_path / "orphan")
    process.kill()
    process.wait()
    wait_until(lambda: gone(leader, orphan), what="the end of everything")
    assert gone(leader, orphan)


def test_a_watchdog_killed_with_sigkill_takes_its_program_along(tmp_path: Path) -> None:
    process = SupervisedProcess(program(tmp_path, "echo $$ >leader; exec sleep 600"))
    leader = pid_in(tmp_path / "leader")
    watchdog_pid = running_watchdog(process.program.pid_path)
    assert watchdog_pid is not None
    os.kill(watchdog_pid, signal.SIGKILL)
    wait_until(lambda: gone(leader), what="the end of the program")
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_leftovers_of_a_former_run_are_ended_by_their_files(tmp_path: Path) -> None:
    process = SupervisedProcess(program(tmp_path, "echo $$ >leader; exec sleep 600", name="broker"))
    leader = pid_in(tmp_path / "leader")
    assert end_leftovers(tmp_path) == ["broker"]
    assert gone(leader)
    assert end_leftovers(tmp_path) == []
    process.end()


def test_a_process_id_used_again_by_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "broker.pid").write_text(f"{os.getpid()} 1\n")
    assert end_leftovers(tmp_path) == []
    assert not (tmp_path / "broker.pid").exists()


def test_a_supervisor_that_ends_starts_nothing_any_more(tmp_path: Path) -> None:
    supervisor = Supervisor()
    first = supervisor.start(program(tmp_path, "sleep 600"))
    supervisor.end()
    assert first.exit_code is not None
    with pytest.raises(StackError, match="being ended"):
        supervisor.start(program(tmp_path, "sleep 600"))


def test_a_program_that_ends_before_anybody_looks_is_noticed_every_time(tmp_path: Path) -> None:
    processes = [SupervisedProcess(program(tmp_path, "exit 5", name=f"quick-{number}")) for number in range(20)]
    assert {process.wait(PATIENCE_SECONDS) for process in processes} == {5}


def test_reserved_ports_are_different_and_prefer_the_memorable_one() -> None:
    with ReservedPorts(20) as ports:
        assert len(set(ports.numbers)) == 20
    with ReservedPorts(2, (ports.numbers[0],)) as again:
        assert again.numbers[0] == ports.numbers[0]


def test_a_port_of_a_server_that_has_just_ended_can_be_had_again() -> None:
    with ReservedPorts(1) as ports:
        number = ports.numbers[0]
        with (
            socket.create_server(("127.0.0.1", number)) as server,
            socket.create_connection(("127.0.0.1", number)) as client,
        ):
            accepted, _ = server.accept()
            accepted.close()  # closed first by the server: the kernel keeps it in TIME_WAIT for a minute
            assert client.recv(1) == b""
    with ReservedPorts(1, (number,)) as again:
        assert again.numbers == [number]


def test_a_port_on_which_somebody_listens_is_not_reserved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with ReservedPorts(1, (number,)) as ports:
            assert ports.numbers != [number]


def test_a_reserved_port_is_kept_from_others_but_open_to_our_own_server() -> None:
    with ReservedPorts(1) as any_port:
        number = any_port.numbers[0]
    with ReservedPorts(1, (number,)) as ours, ReservedPorts(1, (number,)) as others:
        assert ours.numbers == [number] != others.numbers
        with socket.create_server(("127.0.0.1", ours.numbers[0])) as server:  # sets SO_REUSEADDR, as servers do
            assert server.getsockname()[1] == ours.numbers[0]
            assert accepts_connections(ours.numbers[0])
