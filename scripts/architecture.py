"""`python scripts/architecture.py` writes what docs/architecture.md says of modules and imports anew, from the code itself.

Between its marks `<!-- NAME: begin -->` and `<!-- NAME: end -->` the page holds every module with the first sentence of its
docstring, and the layers of the import contracts in pyproject.toml. tests/unit/docs/test_architecture.py compares.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/architecture.md")
WIDTH = 120
TOPS = ("broker/logbus_broker", "plugins/logbus", "spark_jobs/logbus_spark")
LAYERS = {"broker": "the broker's rooms import downward only", "pipeline": "the pipeline's rooms import downward only"}
# A sentence ends at a full stop, or at a colon that a list follows; not at the stop of an abbreviation or of a file's name.
SENTENCE = re.compile(r"(.+?[.?!])(?=\s+[A-Z`]|$)", re.DOTALL)


def modules_text(checkout: Path) -> str:
    """Every room with its modules, as lists."""
    return "\n".join(line for top in TOPS for folder in rooms(checkout / top) for line in room_lines(checkout, folder))


def rooms(top: Path) -> Iterator[Path]:
    """Folders that hold modules, outermost first. Migrations count as one module: what they are is in their folder's name."""
    for folder in [top, *sorted(path for path in top.rglob("*") if path.is_dir())]:
        if any(folder.glob("*.py")) and "migrations" not in folder.parts:
            yield folder


def room_lines(checkout: Path, folder: Path) -> Sequence[str]:
    what = first_sentence(folder / "__init__.py")
    listed = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
    listed += [path / "__init__.py" for path in [folder / "migrations"] if path.is_dir()]
    lines = [f"\n### {folder.relative_to(checkout)}\n", *wrapped(what), ""]
    for module in listed:
        name = f"{module.parent.name}/" if module.name == "__init__.py" else module.name
        lines += wrapped(f"- `{name}`: {first_sentence(module)}", "  ")
    return lines


def first_sentence(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    text = " ".join(docstring.split("\n\n")[0].split())
    match = SENTENCE.match(text)
    return match[1] if match else text


def imports_text(checkout: Path) -> str:
    contracts = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {contract["name"]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    lines = []
    for name, contract in LAYERS.items():
        lines += wrapped(f"{name + ':':<10}" + " -> ".join(layers[contract]), " " * 10)
    lines += wrapped(
        f"{'jobs:':<10}logbus_spark -> loads, and all below it; nothing imports logbus_spark: it is submitted", " " * 10
    )
    return "\n".join(["```", *lines, "```"])


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def renewed(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def current_page(checkout: Path) -> str:
    page = renewed((checkout / PAGE).read_text(), "imports", imports_text(checkout))
    return renewed(page, "modules", modules_text(checkout))


if __name__ == "__main__":
    (CHECKOUT / PAGE).write_text(current_page(CHECKOUT))
