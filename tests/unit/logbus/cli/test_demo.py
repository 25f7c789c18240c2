from __future__ import annotations

import io
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from logbus.cli.demo import DemoResult, Rerun, Screen, Steps, home_of_log, sample_log
from logbus.cli.up import environment_file
from logbus.errors import UserError
from logbus.model import FrozenWindow
from rich.console import Console

from tests.support.fake_ledger import window

TEN = datetime(2015, 5, 17, 10, tzinfo=UTC)
AUDITED = datetime(2026, 11, 21, tzinfo=UTC)


def hour(number: int, *, attempt: int = 1, audited: bool = True, records: int = 10) -> FrozenWindow:
    start = TEN + timedelta(hours=number)
    return window(start, attempt=attempt, records=records, audited_at=AUDITED if audited else None)


def result(*windows: FrozenWindow, rerun: Rerun | None = None) -> DemoResult:
    again = rerun or Rerun(before=hour(0), after=hour(0, attempt=2))
    return DemoResult(windows=windows, rerun=again, seconds={"ship": 1.234})


def test_the_report_sums_what_the_ledger_says() -> None:
    assert result(hour(0), hour(1, records=5)).report() == {
        "hours": 2,
        "read": 15,
        "loaded": 13,
        "dead_lettered": 2,
        "audited_hours": 2,
        "rerun_identical": True,
        "seconds": {"ship": 1.23},
    }


def test_one_hour_without_an_exact_audit_fails_the_demo() -> None:
    assert result(hour(0), hour(1)).is_exact
    assert not result(hour(0), hour(1, audited=False)).is_exact


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (hour(0, attempt=1), "it was not loaded again"),
        (hour(0, attempt=2, records=11), "another fingerprint"),
        (hour(0, attempt=2, audited=False), "not audited"),
    ],
)
def test_a_rerun_counts_only_if_it_was_loaded_again_with_the_same_records_and_audited(after: FrozenWindow, why: str) -> None:
    rerun = Rerun(before=hour(0), after=after)
    assert not rerun.identical, why
    assert not result(hour(0), rerun=rerun).is_exact


def test_the_screen_shows_the_hours_the_sums_and_the_proof() -> None:
    text = io.StringIO()
    screen = Screen(Console(file=text, width=120))
    shown = result(hour(0), hour(1, audited=False, records=2_000))
    screen.windows(shown.windows)
    screen.rerun(shown.rerun.before, shown.rerun.after, shown.rerun.identical)
    printed = text.getvalue()
    for expected in ("2015-05-17 10:00", "2 hours", "2,010", "not exact", "1 exact", "attempt 2", "identical"):
        assert expected in printed


def test_steps_keep_their_seconds_and_only_finished_ones_count() -> None:
    moments = iter([10.0, 12.5, 20.0])
    steps = Steps(Screen(Console(file=io.StringIO())), lambda: next(moments))
    with steps.step("ship", "Shipping"):
        pass
    with pytest.raises(ValueError, match="no"), steps.step("load", "Loading"):
        raise ValueError("no")
    assert steps.seconds == {"ship": 2.5}


def test_a_log_keeps_its_home_while_it_grows_and_another_log_has_another(tmp_path: Path) -> None:
    log, other = tmp_path / "access.log", tmp_path / "other.log"
    log.write_text("first line\n")
    other.write_text("first line\n")
    before = home_of_log(tmp_path, log)
    log.write_text("first line\nsecond line\n")
    assert home_of_log(tmp_path, log) == before
    assert home_of_log(tmp_path, other) != before
    log.write_text("rotated: another first line\n")
    assert home_of_log(tmp_path, log) != before
    assert before.name.startswith("access-")


def test_a_log_that_cannot_be_read_or_is_empty_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the log"):
        home_of_log(tmp_path, tmp_path / "missing.log")
    (tmp_path / "empty.log").touch()
    with pytest.raises(UserError, match="is empty"):
        home_of_log(tmp_path, tmp_path / "empty.log")


def test_without_a_log_the_same_sample_is_taken_every_time(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = sample_log(tmp_path, now)
    written = first.stat().st_mtime_ns
    assert sample_log(tmp_path, now) == first
    assert first.stat().st_mtime_ns == written
    assert len(first.read_text().splitlines()) == 10_000


def test_a_sample_of_last_week_gives_way_to_one_that_the_pages_show(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    before = sample_log(tmp_path, now).read_text()
    assert sample_log(tmp_path, now + timedelta(days=6)).read_text() != before


def test_a_path_that_looks_like_markup_is_shown_as_it_is() -> None:
    console = Console(width=80, file=io.StringIO())
    Screen(console).next_steps([("Ledger", "/home/[me]/[/x]/logbus window ls")])
    assert console.file.getvalue() == "Ledger  /home/[me]/[/x]/logbus window ls\n"  # type: ignore[attr-defined]


def test_a_shell_that_reads_the_file_knows_every_address_whatever_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql+psycopg://postgres@/logbus?host=/a b/it's $HOME"
    programs = tmp_path / 'it\'s $HOME of "me"'
    programs.mkdir()
    (programs / "logbus").touch(0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    with environment_file(tmp_path / "env", {"LOGBUS_WAREHOUSE_URL": url}) as path:
        script = f'source "{path}"; printf %s "$LOGBUS_WAREHOUSE_URL"; command -v psql logbus >&2'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == url
    assert [Path(line).name for line in done.stderr.splitlines()] == ["psql", "logbus"]
    assert str(programs / "logbus") in done.stderr


def test_the_file_is_gone_when_what_it_says_is_not_true_any_more(tmp_path: Path) -> None:
    def breaks() -> None:
        with environment_file(tmp_path / "env", {}) as path:
            assert path.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks()
    assert not (tmp_path / "env").exists()
