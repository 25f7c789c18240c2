"""The pages' HTML: plain tables that need no script, every value escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from logbus.windows.model import FrozenWindow, WindowCounts, counts_json, instant_text

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .2em .8em; text-align: left; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #1b1b1b } a { color: #8ab4f8 } th, td { border-color: #444 }
}
"""


def window_page(window: FrozenWindow, warehouse_conn_id: str) -> str:
    """Everything the ledger says about one window."""
    facts: Mapping[str, Any] = {
        "state": window.state,
        "topic": window.topic,
        "records": window.record_count,
        "attempts begun": window.last_attempt,
        "attempt that is loaded": window.loaded_attempt,
        "fingerprint": window.fingerprint,
        "frozen": window.frozen_at and instant_text(window.frozen_at),
        "loaded": window.loaded_at and instant_text(window.loaded_at),
        "audited": window.audited_at and instant_text(window.audited_at),
        **(counts_json(window.counts) or {}),
    }
    ranges = [(part.partition, part.start_offset, part.end_offset, part.count) for part in window.ranges]
    others = f'<p><a href="../{link(window.pipeline, warehouse_conn_id)}">all windows of {escape(window.pipeline)}</a></p>'
    body = table(("fact", "value"), facts.items()) + table(("partition", "start offset", "end offset", "records"), ranges)
    return page(f"{window.pipeline} {window.interval}", body + others)


def windows_page(pipeline: str, windows: Sequence[FrozenWindow], warehouse_conn_id: str) -> str:
    """A line for each window, the newest first."""
    rows = []
    for window in reversed(windows):
        counts, start = window.counts or WindowCounts(), instant_text(window.interval.start)
        target = f"{quote(pipeline, safe='')}/{link(start, warehouse_conn_id)}"
        first = Markup(f'<a href="{escape(target)}">{escape(start)}</a>')
        rows.append((first, window.state, window.record_count, counts.loaded, counts.dead_lettered, window.fingerprint))
    return page(pipeline, table(("window", "state", "records", "loaded", "dead-lettered", "fingerprint"), rows))


class Markup(str):
    """HTML that is escaped already."""


def link(name: str, warehouse_conn_id: str) -> str:
    """A relative address that keeps the connection."""
    return f"{quote(name, safe='')}?{urlencode({'warehouse_conn_id': warehouse_conn_id})}"


def table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{lines}</table>"


def cell(value: Any) -> str:
    if isinstance(value, Markup):
        return f"<td>{value}</td>"
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('-' if value is None else str(value))}</td>"


def page(title: str, body: str) -> str:
    head = f"<title>{escape(title)}</title><meta charset=utf-8><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>"
