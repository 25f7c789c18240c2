from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import click
import pytest
from click.testing import CliRunner
from logbus.cli import COMMANDS, main
from logbus.errors import UserError


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in COMMANDS)


def test_help_imports_neither_airflow_nor_spark() -> None:
    program = "import sys, logbus.cli; print(sorted({'airflow', 'pyspark', 'pyarrow', 'sqlalchemy'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_of_the_table_exists_and_has_help(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    if name != "broker":  # hands its arguments on, --help included
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_an_unknown_command_is_an_error() -> None:
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2


def test_a_library_error_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise UserError("the warehouse is down: start it")

    module = ModuleType("failing_command")
    module.command = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_command", module)
    monkeypatch.setitem(COMMANDS, "fails", ("failing_command:command", ""))
    result = CliRunner().invoke(main, ["fails"])
    assert result.exit_code == 1
    assert result.output == "error: the warehouse is down: start it\n"
