"""How the code is cut: `python scripts/code_figures.py [checkout]` prints lines, modules, rooms, imports and pronouns.

A line of code is one that holds a token of code: neither blank, nor a comment, nor a docstring. A module is a file with a line of
code; a room is a folder directly below `logbus_broker` or `logbus`. Product: broker, plugins, spark_jobs, dags; of these the
modules, imports and names of dags are not counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("broker", "plugins", "spark_jobs")
SMALL_LINES = 50
# Names that say that there is a value, not what it holds. tests/unit/test_house.py keeps them out of the product.
PRONOUNS = frozenset(
    ["found", "one", "told", "asked", "known", "made", "some", "wanted", "seen", "said", "place", "mine", "held", "there"]
)
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules(checkout: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in (checkout / folder).rglob("*.py") if "__pycache__" not in path.parts)


def lines_of_code(source: str) -> int:
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def import_lines(tree: ast.AST) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is bound to a value, with its line: variables, arguments, `as`, patterns."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line) | ast.arg(arg=name, lineno=line):
                yield name, line
            case ast.ExceptHandler(name=str(name), lineno=line):
                yield name, line
            case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
                yield name, line


def main(checkout: Path) -> None:
    sources = {path: path.read_text() for path in modules(checkout, *PRODUCT)}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    code = {path: count for path, source in sources.items() if (count := lines_of_code(source))}
    names = Counter(name for tree in trees.values() for name, _ in bindings(tree))
    pronouns = sum(names[pronoun] for pronoun in PRONOUNS)
    rooms = {
        path.relative_to(checkout).parts[:-1] for path in code if path.parent.name not in ("logbus_broker", "logbus", "plugins")
    }
    rooms = {parts[:3] for parts in rooms if parts[0] != "spark_jobs"}
    product = sum(code.values()) + sum(lines_of_code(path.read_text()) for path in modules(checkout, "dags"))
    tests = sum(lines_of_code(path.read_text()) for path in modules(checkout, "tests"))
    print(f"product           {product:>7,} lines of code, dags included")
    print(f"tests             {tests:>7,} lines of code, {tests / product:.3f} times the product")
    small = sum(count <= SMALL_LINES for count in code.values())
    print(f"modules           {len(code):>7,}, {small} of {SMALL_LINES} lines or fewer")
    print(f"rooms             {len(rooms):>7,}: {', '.join(sorted('/'.join(parts[-2:]) for parts in rooms))}")
    print(f"import lines      {100 * sum(map(import_lines, trees.values())) / sum(code.values()):>7.1f} % of the code")
    print(f"names of the list {pronouns:>7,} of {names.total():,} bindings")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
