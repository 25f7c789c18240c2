"""Airflow assets: a pipeline's table as an asset that can schedule other DAGs, and what its events contain.

An event carries the starts of its windows, so the DAG that it starts can see which hours to read. Nothing in it is secret: names,
instants, offsets and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow.sdk import Asset

from logbus.model import FrozenWindow, Pipeline, instant_text

# Of the windows of an event or an XCom, with all that is known of them: both are rows of Airflow's database, and a window of 200
# partitions is 6 kB.
WINDOWS_SHOWN_MAX = 100


class Summarized(Protocol):
    """A window, or what was done to one."""

    def summary(self) -> dict[str, Any]: ...


def table_asset(pipeline: Pipeline | str) -> Asset:
    """The asset for what the pipeline loads. A DAG elsewhere needs only the pipeline's name."""
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return Asset(name=f"logbus/{name}", uri=f"x-logbus://pipeline/{name}", group="logbus")


def event_extra(windows: Iterable[FrozenWindow]) -> dict[str, Any]:
    """What an event carries about its windows: the starts of all, and details of the first ones."""
    found = list(windows)
    counts = [window.counts for window in found if window.counts is not None]
    return {
        "pipeline": found[0].pipeline if found else None,
        "loaded": sum(count.loaded for count in counts),
        "dead_lettered": sum(count.dead_lettered for count in counts),
        **windows_extra([window.interval.start for window in found], found),
    }


def windows_extra(starts: Iterable[datetime], windows: Sequence[Summarized]) -> dict[str, Any]:
    """What an event or an XCom has of many windows: the starts of all, for the tasks that work on them next, and details of the
    first ones."""
    return {
        "window_count": len(windows),
        "starts": [instant_text(start) for start in starts],
        "windows": [window.summary() for window in windows[:WINDOWS_SHOWN_MAX]],
    }


def tell_outlets(context: Mapping[str, Any], outlets: Iterable[Any], windows: Iterable[FrozenWindow]) -> None:
    """Puts the windows into the events that the task's success will create for its outlet assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    extra = event_extra(windows) if assets else {}
    for asset in assets:
        context["outlet_events"][asset].extra = extra
