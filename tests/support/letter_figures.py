"""What the page of an hour must show of its dead letters; a part of the table in window_figures.py."""

from __future__ import annotations

import base64
from itertools import groupby
from typing import TYPE_CHECKING

from logbus.model import instant_text

from tests.support.platform_facts import Row
from tests.support.shown_figures import Figure, Text, many, said

if TYPE_CHECKING:
    from tests.support.window_figures import View

LETTERS = "the ledger's dead letters"
SAMPLES, BYTES_SHOWN = 20, 2_000


def classes(view: View) -> list[tuple[str, int]]:
    names = sorted(one["error_class"] for one in view.rows("dead_letter", "offset"))
    found = [(name, len(list(same))) for name, same in groupby(names)]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def letters(view: View) -> list[Row]:
    """Those that are shown: the first of each class, then the second, and so on."""
    nth: dict[str, int] = {}
    numbered = []
    for one in sorted(view.rows("dead_letter", "offset"), key=lambda one: (one["partition"], one["offset"])):
        nth[one["error_class"]] = nth.get(one["error_class"], 0) + 1
        numbered.append((nth[one["error_class"]], one["error_class"], one))
    return [one for _, _, one in sorted(numbered, key=lambda found: found[:2])[:SAMPLES]]


def letter_head(one: Row) -> Text:
    place = f"partition {one['partition']}, offset {one['offset']}"
    return (one["error_class"], place, said("moment", one["timestamp"]), f"key {one['key'].decode()}")


def letter_value(one: Row) -> Text:
    head = one["value"][:BYTES_SHOWN]
    text = head.decode(errors="ignore")
    return text if text.encode() in (head, head[:-1]) else f"base64 {base64.b64encode(head).decode()}"


def letters_shown(view: View) -> list[Text]:
    count = len(view.rows("dead_letter", "offset"))
    command = f"logbus dead-letter show --pipeline {view.name} {instant_text(view.start)}"
    return (
        [(said("whole", SAMPLES), " of ", said("whole", count), f" are shown; all of them: {command}")] if count > SAMPLES else []
    )


FIGURES = (
    Figure(
        name="dead letters",
        place="#dead-letters h2 .quiet",
        source=LETTERS,
        expected=lambda view: (
            [(many(sum(count for _, count in found), "record"), " that did not parse; nothing of them is lost")]
            if (found := classes(view))
            else []
        ),
    ),
    Figure(
        name="their classes", place=".errors .one b", source=LETTERS, expected=lambda view: [name for name, _ in classes(view)]
    ),
    Figure(
        name="of each class",
        place=".errors .one .number",
        source=LETTERS,
        expected=lambda view: [said("whole", count) for _, count in classes(view)],
    ),
    Figure(
        name="an example of each class",
        place=".errors .one",
        attribute="title",
        source=LETTERS,
        expected=lambda view: [
            min(one["error"][:500] for one in view.rows("dead_letter", "offset") if one["error_class"] == name)
            for name, _ in classes(view)
        ],
    ),
    Figure(
        name="samples", place=".sample .line", source=LETTERS, expected=lambda view: [letter_head(one) for one in letters(view)]
    ),
    Figure(
        name="their errors",
        place=".sample > .line + div",
        source=LETTERS,
        expected=lambda view: [one["error"][:500] for one in letters(view)],
    ),
    Figure(
        name="their values",
        place=".sample pre",
        source=LETTERS,
        expected=lambda view: [letter_value(one) for one in letters(view)],
    ),
    Figure(
        name="how much of them",
        place=".sample > p",
        source=LETTERS,
        expected=lambda view: [
            ("the first of ", said("bytes", len(one["value"]))) for one in letters(view) if len(one["value"]) > BYTES_SHOWN
        ],
    ),
    Figure(name="how many are shown", place="#dead-letters > p", source=LETTERS, expected=letters_shown),
)
