"""What operators and sensors read of a task, and what it leaves: which window its run stands for, its arguments as templates
render them, which errors no retry can fix; its result, the events of its outlet assets, and the button that leads to its window.

A run stands for its data interval, and for nothing else: its logical date means the start of the interval in some timetables and
its end in others, and `schedule="@hourly"` gives intervals of no length at all. So windows come from data_interval_start and
data_interval_end, and a run without them is told so.

Airflow asks for the link in the worker when the task ends, and passes the running task instance as its key; so the run's
interval is at hand and nothing has to be stored for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import Asset, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException

from logbus import errors, model

BEYOND_RETRY = (
    errors.RecordsLost,
    errors.TopicRecreated,
    errors.LogChanged,
    errors.PipelineConflict,
    errors.WindowOverlap,
    errors.ErrorBudgetExceeded,
    errors.OtherRecords,
    errors.AttemptSuperseded,
    errors.TooManyWindows,
    errors.WrongRequest,
)
# Of the windows of an event or an XCom, with all that is known of them: both are rows of Airflow's database.
WINDOWS_SHOWN_MAX = 100
# Of what those say by partition, and other results by partition or window, all together: 30 bytes each.
DETAILS_SHOWN_MAX = 2_000
DETAILS = frozenset(
    {
        *("ranges", "expected", "counted", "committed", "ahead", "moves", "partitions", "deletions", "held"),
        *("no_longer_replayable", "given_up"),
    }
)
TRUE_WORDS = ("true", "yes", "1", "on")
TIMETABLE_ADVICE = (
    "schedule the DAG by logbus.timetable.WindowTimetable(), as ingest does, or by "
    'CronDataIntervalTimetable("0 * * * *", timezone="UTC")'
)


def run_interval(context: Mapping[str, Any]) -> model.Interval:
    """The data interval of the run that `context` belongs to."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        raise errors.WrongRequest(
            "this run has no data interval, so it is unknown which window it is for: trigger it with a logical date, "
            "or load past hours with the pipeline's catch-up DAG"
        )
    if start == end:
        raise errors.WrongRequest(f"the data interval of this run has no length ({start.isoformat()}): {TIMETABLE_ADVICE}")
    return model.Interval(plain(start), plain(end))


def plain(instant: datetime) -> datetime:
    """Airflow's instants are pendulum's, which lose their zone when a timedelta is added after astimezone(UTC)."""
    return datetime.fromtimestamp(instant.timestamp(), UTC)


def not_a_pipeline(given: object, operator: str) -> errors.UserError:
    return errors.UserError(
        f"{operator} takes a Pipeline, not {given!r}: pass what define_pipeline(...) returns, as you do for the DAG's other tasks"
    )


def validate_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise errors.UserError(f"{name} is a number of windows, 1 or more; got {value!r}")


def names(given: Iterable[str] | str | None) -> list[str]:
    """Names from a list, or from the text that a template renders (separated by commas or spaces). None, also as the text of a
    parameter that was left out, names nothing."""
    if given is None or given == "None":
        return []
    return given.replace(",", " ").split() if isinstance(given, str) else list(given)


def validate_windows_text(windows: Sequence[str] | str | None) -> None:
    """A text without a window is a parameter that was forgotten: done with nothing, the task would seem to have done its work."""
    if isinstance(windows, str) and not windows.replace(",", " ").split():
        raise errors.WrongRequest(
            f"windows is an empty string ({windows!r}): give the starts of hours, such as 2015-05-17T10:00:00Z, "
            "or leave `windows` out for the run's own"
        )


def window_starts(windows: Sequence[str] | str | None) -> list[datetime]:
    """Instants from a list, or from the text that a template renders (separated by commas or spaces)."""
    words = windows.replace(",", " ").split() if isinstance(windows, str) else windows or ()
    try:
        return sorted({model.parse_instant(word) for word in words})
    except ValueError as error:
        raise errors.WrongRequest(f"windows are the starts of hours, such as 2015-05-17T10:00:00Z: {error}") from None


def is_true(value: bool | str) -> bool:
    """Whether the value is true; a DAG parameter renders as text."""
    return str(value).strip().lower() in TRUE_WORDS


@contextlib.contextmanager
def fail_without_retry() -> Iterator[None]:
    """A retry would only hide a lost record or a recreated topic for an hour; a superseded load would take the window back."""
    try:
        yield
    except BEYOND_RETRY as error:
        raise AirflowFailException(str(error)) from error


def optional_instant(name: str, text: str | None) -> datetime | None:
    """The instant, or None if it was left out; a DAG parameter that was left out renders as "None"."""
    if text is None or text in {"", "None"}:
        return None
    try:
        return model.parse_instant(text)
    except ValueError as error:
        raise errors.UserError(f"{name} is an instant such as 2015-05-17T10:00:00Z: {error}") from None


# What a task leaves: its result for the tasks after it, and the events of its outlet assets.
#
# An event carries the starts of its windows, so the DAG that it starts can see which hours to read. Nothing in it is secret:
# names, instants, offsets and counts.


class Summarized(Protocol):
    """A window, or what was done to one."""

    def summary(self) -> dict[str, Any]: ...


def event_extra(windows: Iterable[model.FrozenWindow]) -> dict[str, Any]:
    """What a load's event and its result say of its windows: totals, the starts of all, and details of the first ones."""
    window_list = list(windows)
    counts = [window.counts for window in window_list if window.counts is not None]
    return {
        "pipeline": window_list[0].pipeline if window_list else None,
        "read": sum(count.read for count in counts),
        "loaded": sum(count.loaded for count in counts),
        "dead_lettered": sum(count.dead_lettered for count in counts),
        **windows_extra([window.interval.start for window in window_list], window_list),
    }


def windows_extra(starts: Iterable[datetime], windows: Sequence[Summarized]) -> dict[str, Any]:
    """What an event or an XCom has of many windows: the starts of all, for the tasks that work on them next, and details of the
    first ones, by partition too if there are few."""
    return {
        "window_count": len(windows),
        "starts": [model.instant_text(start) for start in starts],
        "windows": bounded_details(window.summary() for window in windows[:WINDOWS_SHOWN_MAX]),
    }


def bounded_details(summaries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The summaries, without their details (null instead) from where those are too many; ledger and log have all of them."""
    kept, count = [], 0
    for summary in summaries:
        mappings: list[Mapping[str, Any]] = [summary]
        for mapping in mappings:  # those within it are added behind it
            mappings += [value for value in mapping.values() if isinstance(value, dict)]
            count += sum(len(value) for name, value in mapping.items() if name in DETAILS)
        kept.append(summary if count <= DETAILS_SHOWN_MAX else _without_details(summary))
    return kept


def _without_details(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if name in DETAILS else _without_details(value) if isinstance(value, dict) else value
        for name, value in summary.items()
    }


def add_to_outlet_events(context: Mapping[str, Any], outlets: Iterable[Any], windows: Iterable[model.FrozenWindow]) -> None:
    """Puts the windows into the events that the task's success will create for its outlet assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    extra = event_extra(windows) if assets else {}
    for asset in assets:
        context["outlet_events"][asset].extra = extra


# The button on every task that leads to its window in the ledger (logbus.web serves the page).


PAGES = "/logbus/windows"


class WindowLink(BaseOperatorLink):
    """Links to the run's window; for a task over many windows, to all windows of its pipeline."""

    name = "Window in the ledger"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        base_url = str(conf.get("api", "base_url", fallback="")).rstrip("/")
        pipeline = getattr(operator, "pipeline_name", None) or operator.pipeline
        path = f"{PAGES}/{quote(str(getattr(pipeline, 'name', pipeline)), safe='')}"
        if getattr(operator, "windows", None) is None:
            try:
                start = run_interval(ti_key.get_template_context()).start
                path += "/" + quote(model.instant_text(start), safe=":")
            except errors.UserError:  # a run without an interval has no window of its own
                pass
        return f"{base_url}{path}?{urlencode({'warehouse_conn_id': operator.warehouse_conn_id})}"
