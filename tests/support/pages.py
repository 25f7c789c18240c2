"""Pages of the documentation as code blocks, each with the comment above it that tells tests what it is.

    <!-- run -->                                            a test runs it
    <!-- run in a terminal of its own until it says: X -->  a test starts it, and continues once it has printed X
    <!-- see -->                                            the output of the last block run; ... stands for anything
    <!-- dag: NAME.py -->, <!-- program: NAME.py -->        a file

Readers do not see these comments, neither on a code host nor on the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGES = [
    *sorted(PROJECT.glob("docs/**/*.md")),
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n)?^(?P<fence>```+)(?P<kind>\w*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL
)
RULES = re.compile(r"[│┃|━─┏┓┗┛┡┩└┘├┤┼╇╈╂┳┻┴┬]+|(?<!\S)[-+]{3,}(?!\S)")
ANYTHING = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A code block of a page. `mark` is the comment above it, empty if there is none."""

    page: Path
    line: int
    mark: str
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"

    def file_name(self, kind: str) -> str | None:
        """The name that the comment gives it as a `dag` or a `program`."""
        name, _, value = self.mark.partition(": ")
        return value if name == kind else None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(page=page, line=line, mark=found["mark"] or "", kind=found["kind"], text=found["text"])


def words(text: str) -> list[list[str]]:
    """Lines as words, without the rules and frames of tables, and without empty lines."""
    lines = (RULES.sub(" ", line).split() for line in text.splitlines())
    return [line for line in lines if line]


def shows(printed: str, promised: str) -> bool:
    """Whether the output is what a page promises. A line `...` stands for any lines, `...` within a line for any words or the
    rest of a word."""
    pattern = "".join(line_pattern(line) for line in words(promised))
    return re.fullmatch(pattern, "".join(" ".join(line) + "\n" for line in words(printed))) is not None


def line_pattern(line: list[str]) -> str:
    if line == [ANYTHING]:
        return r"(?:.*\n)*"
    return " ".join(word_pattern(word) for word in line) + r"\n"


def word_pattern(word: str) -> str:
    return ".*".join(re.escape(part) for part in word.split(ANYTHING))
