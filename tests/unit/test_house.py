"""What keeps the house readable: a class name means one thing, and a module is more than a few lines in most cases."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ROOMS = ("broker", "plugins/logbus", "spark_jobs")
SMALL_LINES_MAX = 25
SMALL_MODULES_MAX = 45

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def modules() -> Iterator[tuple[Path, str, ast.Module]]:
    for room in ROOMS:
        for path in sorted((PROJECT / room).rglob("*.py")):
            text = path.read_text()
            yield path.relative_to(PROJECT), text, ast.parse(text)


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines of code: neither comments nor docstrings nor blank ones."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node, clean=False)]
    prose = {line for first in firsts for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)} - prose)


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, _, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_few_modules_are_smaller_than_the_noun_that_they_are_named_after() -> None:
    small = [str(path) for path, text, tree in modules() if 0 < code_lines(text, tree) < SMALL_LINES_MAX]
    assert len(small) <= SMALL_MODULES_MAX, f"does one of these belong into another module? {small}"
