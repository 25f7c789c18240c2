"""Markdown that the generated pages have in common: tables and words for numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

UNITS_OF_BYTES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
UNITS_OF_TIME = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are already Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """Text that is neither Markdown nor HTML: only what would break a page is escaped, so names in backticks stay."""
    return escape(text, quote=False).replace("*", "\\*")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def bytes_in_words(count: int) -> str | None:
    """`1 GiB` if it is exactly that."""
    return next((f"{count // size} {unit}" for unit, size in UNITS_OF_BYTES if count >= size and count % size == 0), None)


def milliseconds_in_words(count: int) -> str | None:
    """`7 days` if it is exactly that."""
    for unit, size in UNITS_OF_TIME:
        if count >= size and count % size == 0:
            number = count // size
            return f"{number} {unit}{'s' if number > 1 else ''}"
    return None
