"""Airflow assets: a pipeline's table as an asset that can schedule other DAGs, and what its events contain.

An event carries the starts of its windows, so the DAG that it starts can see which hours to read. Nothing in it is secret: names,
instants, offsets and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset

from logbus.model import FrozenWindow, Pipeline, instant_text

WINDOWS_SHOWN_MAX = 100  # of an event's windows with all that is known of them: an event is a row of Airflow's database


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
        "window_count": len(found),
        "loaded": sum(count.loaded for count in counts),
        "dead_lettered": sum(count.dead_lettered for count in counts),
        "starts": [instant_text(window.interval.start) for window in found],
        "windows": [window.summary() for window in found[:WINDOWS_SHOWN_MAX]],
    }


def tell_outlets(context: Mapping[str, Any], outlets: Iterable[Any], windows: Iterable[FrozenWindow]) -> None:
    """Puts the windows into the events that the task's success will create for its outlet assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    extra = event_extra(windows) if assets else {}
    for asset in assets:
        context["outlet_events"][asset].extra = extra
