"""The cells of a pipeline, decoded from the columns of /logbus/api/overview as docs/airflow.md tells programs to do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from logbus.model import instant_text, parse_instant
from logbus.web.cells import LETTERS

STATES = {letter: state.value for state, letter in LETTERS.items()}
IS_LOADED, WAS_TRIED = "DAL", "DALFR"


def cells(pipeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One object per cell, in the order of time."""
    columns, found = pipeline["cells"], list[dict[str, Any]]()
    for run in columns["runs"]:
        length = timedelta(seconds=run.get("seconds", pipeline["interval_seconds"]))
        begin = parse_instant(run["start"])
        for number in range(run["count"]):
            found.append(cell(columns, len(found), begin + number * length, length))
    assert len(found) == len(columns["states"]) == len(columns["records"])
    return found


def cell(columns: Mapping[str, Any], place: int, start: Any, length: timedelta) -> dict[str, Any]:
    letter, records = columns["states"][place], columns["records"][place]

    def rare(name: str, usual: Any) -> Any:
        return columns.get(name, {}).get(str(place), usual)

    dead = rare("dead_lettered", 0)
    return {
        "start": instant_text(start),
        "end": instant_text(start + length),
        "state": STATES[letter],
        "records": records,
        "loaded": rare("loaded", (records or 0) - dead if letter in IS_LOADED else 0),
        "dead_lettered": dead,
        "lost": rare("lost", 0),
        "attempts": rare("attempts", int(letter in WAS_TRIED)),
        "note": rare("note", None),
        "of_run": rare("of_run", False),
    }
