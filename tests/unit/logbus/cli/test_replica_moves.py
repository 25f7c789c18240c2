"""What `logbus cluster plan`, `move` and `drain` take on the command line, and how figures are shown."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.cli.cluster import BrokerIds, BytesPerSecond, shown_bytes, shown_seconds


@pytest.mark.parametrize(
    ("text", "rate"),
    [("52428800", 52_428_800), ("50MB", 50_000_000), ("50 MiB/s", 50 << 20), ("1.5kb/s", 1_500), ("2GiB", 2 << 30)],
)
def test_a_rate_is_bytes_a_second_with_or_without_a_unit(text: str, rate: int) -> None:
    assert BytesPerSecond().convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "0.4", "-5", "5 parsecs", "5MBit", "9" * 400, "9000000TB"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 50MB"):
        BytesPerSecond().convert(text, None, None)


def test_brokers_are_named_by_their_ids() -> None:
    assert BrokerIds().convert("3,1,3", None, None) == (3, 1)
    with pytest.raises(click.BadParameter, match="write their ids like 1,2,3"):
        BrokerIds().convert("one", None, None)


def test_figures_are_short() -> None:
    assert [shown_bytes(count) for count in (999, 1_500, 2_000_000, 3 * 10**12)] == ["999 B", "1.5 kB", "2.0 MB", "3.0 TB"]
    assert [shown_seconds(seconds) for seconds in (5.4, 100, 4_000, 90_000)] == ["5 s", "2 min", "67 min", "25 h 0 min"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("move", "{file}", "--from-plan"), "either a FILE or --from-plan"),
        (("move", "--brokers", "1"), "--brokers and --topic belong to --from-plan"),
        (("drain",), "Missing argument 'BROKER'"),
        (("moove",), "No such command 'moove'"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_asked(
    words: tuple[str, ...], sentence: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("moves") / "plan.json"
    file.write_text("{}")
    ran = CliRunner().invoke(main, ["cluster", *(word.format(file=file) for word in words)])
    assert (ran.exit_code, sentence in ran.stderr) == (2, True), ran.stderr
