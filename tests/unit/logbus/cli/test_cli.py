from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner
from logbus import errors
from logbus.cli import COMMANDS, SECTIONS, exit_with_status, main
from logbus.cli.endings import Stopped, Terminated
from logbus.cli.options import completer
from logbus.errors import ExitCode
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError

HEAVY = ("airflow", "pyspark", "pyarrow", "sqlalchemy", "rich", "confluent_kafka", "kafka", "duckdb", "psycopg")
# click and the standard library; importing one command for its help adds hundreds.
MODULES_MAX = 250


def test_help_names_every_command_in_its_section() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in COMMANDS)
    places = [result.output.index(f"\n{title}:") for title in SECTIONS]
    assert places == sorted(places)


def test_what_the_machine_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    result = CliRunner().invoke(main, ["up", "--home", str(home)])
    assert result.exit_code == 1
    assert result.stderr == f"error: cannot write in {home}: Not a directory; choose another place with --home\n"


def test_what_was_printed_before_the_machine_refused_is_not_lost() -> None:
    """In a process of its own, whose output is a pipe and so is buffered."""
    program = (
        "import errno, os\nfrom logbus import cli\n"
        "def fail():\n"
        "    print('printed')\n"
        "    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))\n"
        "import click\n"
        "cli.exit_with_status(click.Context(cli.main), fail)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr.splitlines()[0]) == ("printed\n", "error: Too many open files")


def test_a_fault_of_our_own_keeps_its_traceback() -> None:
    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "static/page.js")

    with pytest.raises(FileNotFoundError):
        exit_with_status(click.Context(main), fail)


def test_names_that_do_not_come_at_once_are_not_waited_for() -> None:
    never = threading.Event()
    complete = completer(lambda ctx: [str(never.wait())], seconds_max=0.01)
    assert complete(click.Context(main), click.Option(["--topic"]), "") == []


def imported(environment: dict[str, str], *words: str) -> list[str]:
    """The modules that a run of the command imports."""
    program = (
        "import sys, json\nfrom logbus.cli import main\ntry:\n    main(sys.argv[1:], prog_name='logbus')\n"
        "finally:\n    print(json.dumps(list(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ("--help",)),
        ({}, ("--version",)),
        ({"_LOGBUS_COMPLETE": "bash_complete", "COMP_WORDS": "logbus to", "COMP_CWORD": "1"}, ()),
        ({"_LOGBUS_COMPLETE": "bash_source"}, ()),
    ],
    ids=["help", "version", "completion", "completion script"],
)
def test_what_must_be_quick_imports_little(environment: dict[str, str], words: tuple[str, ...]) -> None:
    modules = imported(environment, *words)
    assert [name for name in HEAVY if name in modules] == []
    assert len(modules) < MODULES_MAX


@pytest.mark.parametrize("name", ["topic", "window"])
def test_completing_options_of_a_command_imports_neither_airflow_nor_spark(name: str) -> None:
    modules = imported({"_LOGBUS_COMPLETE": "bash_complete", "COMP_WORDS": f"logbus {name} --", "COMP_CWORD": "2"})
    assert [heavy for heavy in ("airflow", "pyspark", "pyarrow") if heavy in modules] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_of_the_table_exists_and_has_help(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    if name != "broker":  # passes its arguments on, including --help
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


Ending = Callable[[BaseException], Any]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Runs a command that ends with an error."""

    def run(error: BaseException) -> Any:
        @click.command()
        def fails() -> None:
            raise error

        module = ModuleType("failing_command")
        module.command = fails  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setitem(COMMANDS, "fails", ("failing_command:command", ""))
        return CliRunner().invoke(main, ["fails"])

    return run


@pytest.mark.parametrize(
    ("error", "status", "output"),
    [
        (errors.UserError("the file is gone: look for it"), 1, "error: the file is gone: look for it\n"),
        (errors.UserError("group evil\x1b]0;pwn\x07\nsecond line"), 1, "error: group evil\\x1b]0;pwn\\x07\nsecond line\n"),
        (errors.TopicMissing("no such topic"), 3, "error: no such topic\n"),
        (errors.WarehouseUnavailable("it is down: start it"), 4, "error: it is down: start it\n"),
        (errors.AuditMismatch("1 of 2 windows are not exact"), 5, "error: 1 of 2 windows are not exact\n"),
        (Stopped("interrupted: 3 records printed", ExitCode.TERMINATED), 143, "interrupted: 3 records printed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Terminated(), 143, "interrupted\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_what_ends_a_command_is_one_line_and_a_status(ending: Ending, error: BaseException, status: int, output: str) -> None:
    result = ending(error)
    assert (result.exit_code, result.output) == (status, output)


LOST = "the database did not carry out a statement"
REFUSED = "the database does not allow this: permission denied for schema logbus"


@pytest.mark.parametrize(
    ("kind", "cause", "status", "output"),
    [
        (ProgrammingError, psycopg.errors.InsufficientPrivilege("permission denied for schema logbus"), 1, f"error: {REFUSED}\n"),
        (OperationalError, psycopg.OperationalError("the connection is lost"), 4, f"error: {LOST}: the connection is lost\n"),
        (InterfaceError, psycopg.InterfaceError("the connection is closed"), 4, f"error: {LOST}: the connection is closed\n"),
    ],
)
def test_a_warehouse_that_fails_or_refuses_is_one_line_too(
    ending: Ending, kind: type[DBAPIError], cause: psycopg.Error, status: int, output: str
) -> None:
    result = ending(kind("select 1", {}, cause))
    assert (result.exit_code, result.output) == (status, output)


def test_a_bug_keeps_its_traceback(ending: Ending) -> None:
    assert isinstance(ending(ZeroDivisionError()).exception, ZeroDivisionError)
    wrong = ProgrammingError("selct 1", {}, psycopg.errors.SyntaxError("syntax error at or near selct"))
    assert ending(wrong).exception is wrong
