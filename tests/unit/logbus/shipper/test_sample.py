from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.shipper.line_timestamps import combined
from logbus.shipper.sample import last_closed_hour, sample_lines, write_sample

END = datetime(2015, 5, 21, tzinfo=UTC)


def sample(lines: int = 20_000, hours: int = 24, seed: int = 1) -> list[str]:
    return list(sample_lines(lines=lines, hours=hours, seed=seed, end=END))


def times_ms(lines: list[str]) -> list[int]:
    stamps = [combined(line.encode()) for line in lines]
    return [stamp.timestamp_ms for stamp in stamps if stamp is not None and stamp.timestamp_ms is not None]


def test_a_sample_can_go_to_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["sample", "-", "--lines", "500", "--hours", "5", "--seed", "1", "--end", "2015-05-21"])
    assert done.stdout == "".join(sample(500, 5))
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_file_and_another_one_another(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_sample(tmp_path / name, lines=500, hours=5, seed=seed, end=END)
    first, again, other = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("now", "end"),
    [("10:09:59", "09:00"), ("10:10:00", "10:00"), ("10:59:59", "10:00"), ("00:03:00", "23:00")],
)
def test_a_sample_of_now_ends_with_the_newest_hour_that_may_be_loaded(now: str, end: str) -> None:
    assert f"{last_closed_hour(datetime.fromisoformat(f'2026-11-23T{now}Z')):%H:%M}" == end


def test_every_hour_has_lines_and_the_day_more_than_the_night() -> None:
    hours = [(END.timestamp() * 1000 - time) // 3_600_000 for time in times_ms(sample())]
    counts = [hours.count(hour) for hour in range(24)]
    assert min(counts) > 0
    assert max(counts) > 2 * min(counts)


def test_times_are_slightly_out_of_order_as_in_a_real_log() -> None:
    times = times_ms(sample())
    backwards = [before - after for before, after in itertools.pairwise(times) if after < before]
    assert backwards
    assert max(backwards) <= 5_000


def test_lines_are_printable_and_as_many_as_asked_for_nearly_all_well_formed_and_a_few_not() -> None:
    lines = sample()
    assert [len(lines), *(len(sample(lines=count, hours=3)) for count in (1, 2))] == [20_000, 1, 2]
    assert all(line.isascii() and line[:-1].isprintable() and line.endswith("\n") for line in lines)
    malformed = [line for line in lines if not line.rstrip().endswith('"') or line.count('"') < 6]
    assert 0 < len(malformed) <= 30


@pytest.mark.parametrize(("lines", "hours"), [(0, 1), (1, 0)])
def test_nothing_cannot_be_asked_for(lines: int, hours: int) -> None:
    with pytest.raises(ValueError, match="at least one line and one hour"):
        sample(lines=lines, hours=hours)
