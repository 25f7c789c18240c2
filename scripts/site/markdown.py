"""Markdown of the site's pages: tables, words for numbers, links of the repository as links of the site.

Pages are written to be read on a code host: a link is relative to the page and leads anywhere in the repository. The site holds
docs/ and a few files from outside of it. So a link to a page of the site becomes a link within the site; one to a program becomes
a link to a page that shows the program; one to a folder, which the site does not have, becomes plain text.
Pure: which files exist is passed in as arguments.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# Files from outside of docs/ that are pages of the site.
OUTSIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Folders that have a page.
FOLDERS: Mapping[str, str] = {"docs/decisions": "decisions/README.md"}
DOCS = "docs/"
SOURCES = "source/"

# A link or a picture: [text](target) or [text](target#part). Targets of other kinds have a colon, or begin with # or /.
LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^()\s:#/][^()\s:#]*)(?P<part>#[^()\s]*)?\)")


def site_page(path: str, is_file: Callable[[str], bool]) -> str | None:
    """The page of the site that shows a file or folder of the repository; None if there is none."""
    if path in OUTSIDE or path in FOLDERS:
        return OUTSIDE.get(path) or FOLDERS[path]
    if not is_file(path):
        return None
    return path.removeprefix(DOCS) if path.startswith(DOCS) else f"{SOURCES}{path}.md"


def targets(text: str, home: str) -> Iterator[str]:
    """The repository's files and folders that a page links to; `home` is the page's own folder in the repository."""
    for match in LINK.finditer(text):
        yield in_repository(match["target"], home)


def within_site(text: str, home: str, page: str, is_file: Callable[[str], bool], exists: Callable[[str], bool]) -> str:
    """The page's text with its links as they are in the site. `page` is its place in the site. A link to something that does not
    exist is left as it is, so that the build complains about it."""

    def rewritten(match: re.Match[str]) -> str:
        path = in_repository(match["target"], home)
        shown = site_page(path, is_file)
        if shown is not None:
            return f"[{match['text']}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{match['part'] or ''})"
        return match["text"] if exists(path) else match[0]

    return LINK.sub(rewritten, text)


def in_repository(target: str, home: str) -> str:
    return posixpath.normpath(posixpath.join(home, target))
