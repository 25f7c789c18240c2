"""The reference covers everything the code documents."""

from __future__ import annotations

import ast

import pytest
from logbus import errors
from logbus.cli import COMMANDS
from logbus.windows import schema

from scripts.site.commands import command_page
from scripts.site.markdown import bytes_in_words, milliseconds_in_words, table
from scripts.site.provider import PACKAGE, ROOMS, public_classes
from scripts.site.reference import addresses_page, column_comments, errors_page, ledger_page, sentences, settings_page
from tests.support.setting_names import setting_names


def test_every_command_is_there_with_its_subcommands_and_options() -> None:
    page = command_page()
    assert [name for name in COMMANDS if f"\n## logbus {name}\n" not in page] == []
    assert "\n### logbus group seek\n" in page
    assert "`--to-datetime" in page
    assert "\n### logbus broker verify\n" in page


def test_every_setting_of_the_broker_is_there_with_its_default_in_words() -> None:
    page = settings_page()
    assert [name for name in setting_names() if f"`{name}`" not in page] == []
    assert "| `log.segment.bytes` | `segment.bytes` | int | `1073741824` (1 GiB) |" in page
    assert "| `log.retention.ms` | `retention.ms` | long | `604800000` (7 days) |" in page


def test_every_table_of_the_ledger_is_there_with_a_sentence() -> None:
    page, names = ledger_page(), {table.name for table in schema.metadata.tables.values()}
    assert names == set(sentences())
    assert [name for name in names if f"\n## {name}\n" not in page] == []
    assert column_comments()["anchor"]["at"] == "null: from the beginning of time"
    assert "| `at` | timestamp with time zone | may be null | null: from the beginning of time |" in page


def test_every_error_is_there_below_its_kind() -> None:
    page = errors_page()
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.LogbusError)]
    assert [name for name in kinds if f"| `{name}` |" not in page] == []
    assert "| `ShortRead` | `LoadFailed` | 1 |" in page
    assert "| `BrokerUnavailable` | `UserError` | 4 |" in page


def test_every_room_of_the_provider_has_its_classes_with_bases_last() -> None:
    operators = public_classes("operators")
    assert {f"logbus.operators.load_window.{name}Operator" for name in ("Replay", "LoadWindow")} <= {*operators}
    assert {path.rpartition(".")[2] for path in operators[-2:]} == {"SparkWindowOperator", "WindowOperator"}
    assert "logbus.sensors.window_loaded.WindowClosedSensor" in public_classes("sensors")
    assert "logbus.sensors.window_event.WindowEventTrigger" in public_classes("triggers")
    assert "logbus.hooks.broker.BrokerHook" in public_classes("hooks")


def test_every_address_in_airflow_is_there_with_its_method_and_a_sentence() -> None:
    rows = [line.split(" | ") for line in addresses_page().splitlines() if "`/logbus/" in line and line.startswith("| ")]
    asked = {(method.strip("| "), address.strip("`")) for method, address, _ in rows}
    assert {
        ("GET", "/logbus/api/overview"),
        ("POST", "/logbus/api/windows/PIPELINE/START/rerun"),
        ("GET", "/logbus/ui/PAGE"),
    } <= asked
    assert [line for line in rows if not line[2].strip(" |")] == []


def test_numbers_in_words_are_exact_or_not_given() -> None:
    assert (bytes_in_words(1 << 20), bytes_in_words(1_048_588), bytes_in_words(512)) == ("1 MiB", None, None)
    assert (milliseconds_in_words(3_600_000), milliseconds_in_words(172_800_000)) == ("1 hour", "2 days")
    assert milliseconds_in_words(1_001) is None
    assert table(("a",), [["x|y"]]).splitlines()[-1] == "| x\\|y |"


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_nothing_stands_behind_the_parameters_of_a_docstring(room: str) -> None:
    """The reference would show it as part of the last parameter."""
    wrong = []
    for path in (PACKAGE / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) or "" if isinstance(node, ast.ClassDef | ast.FunctionDef) else ""
            if "\n\n" in text[text.find(":param") :].strip() and ":param" in text:
                wrong.append(f"{path.name}: {node.name}")
    assert wrong == []
