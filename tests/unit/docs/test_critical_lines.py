"""docs/at-three-in-the-morning.md has every line that the broker logs as CRITICAL, under the module that logs it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[3]
BROKER = PROJECT / "broker" / "logbus_broker"
PAGE = PROJECT / "docs" / "at-three-in-the-morning.md"
SECTION = re.compile(r"^<!-- logged by: ([\w/.]+) -->\n\n```\n([^\n]+)\n```\n\n(.+?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"%[-\d.]*[a-z]")


def formats() -> dict[str, list[str]]:
    """By module, the formats of its critical lines."""
    by_module: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for path in BROKER.rglob("*.py") if ".critical(" in path.read_text()):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "critical":
                by_module[str(path.relative_to(BROKER))].append(str(ast.literal_eval(node.args[0])))
    return by_module


def test_every_critical_line_is_on_the_page_and_no_other() -> None:
    lines = {module: line for module, line, _ in SECTION.findall(PAGE.read_text())}
    by_module = formats()
    assert lines.keys() == by_module.keys()
    for module, texts in by_module.items():
        for text in texts:
            pattern = ".*".join(map(re.escape, PLACEHOLDER.split(text)))
            assert re.fullmatch(pattern, lines[module]), f"{module} logs {text!r}"


def test_every_critical_line_is_explained() -> None:
    for module, _, meaning in SECTION.findall(PAGE.read_text()):
        assert len(meaning.split()) > 15, module


def test_no_line_is_logged_as_critical_in_another_way() -> None:
    for path in BROKER.rglob("*.py"):
        assert "log(logging.CRITICAL" not in path.read_text(), path
