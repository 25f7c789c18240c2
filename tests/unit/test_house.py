"""What keeps the house readable: a class name means one thing, a module is more than a few lines in most cases, and what was hard
says why.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.code_figures import PRONOUNS, bindings

PROJECT = Path(__file__).parents[2]
ROOMS = ("broker/logbus_broker", "plugins/logbus", "spark_jobs/logbus_spark")
SMALL_LINES_MAX = 25
SMALL_MODULES_MAX = 45

# Comment lines in a hundred lines of code, docstrings on neither side. Floors and no aims: a comment says why, or it is noise.
COMMENTS_MIN = 4.0
COMMENTS_IN_HARD_FILES_MIN = 5.0
# States, invariants and orders of steps that a reader cannot guess: whoever changes one of these has to find out why it is so.
HARD_FILES = (
    "broker/logbus_broker/cluster/leader_election.py",
    "broker/logbus_broker/cluster/metadata_watcher.py",
    "broker/logbus_broker/cluster/registration.py",
    "broker/logbus_broker/cluster/metadata_writes.py",
    "broker/logbus_broker/cluster/zookeeper.py",
    "broker/logbus_broker/engine.py",
    "broker/logbus_broker/groups/coordinator.py",
    "broker/logbus_broker/groups/group.py",
    "broker/logbus_broker/api/produce_fast_path.py",
    "broker/logbus_broker/api/fetch_fast_path.py",
    "broker/logbus_broker/network/connection.py",
    "broker/logbus_broker/network/server.py",
    "broker/logbus_broker/log/cleaner.py",
    "broker/logbus_broker/log/high_watermark.py",
    "broker/logbus_broker/log/flusher.py",
    "broker/logbus_broker/log/partition.py",
    "broker/logbus_broker/log/producer_state.py",
    "broker/logbus_broker/replication/replica_fetcher.py",
    "broker/logbus_broker/replication/leader.py",
    "broker/logbus_broker/replication/led_partition.py",
    "broker/logbus_broker/replication/replica_manager.py",
    "broker/logbus_broker/log/compaction.py",
    "broker/logbus_broker/log/log_directory.py",
    "broker/logbus_broker/log/partition_log.py",
    "broker/logbus_broker/log/recovery.py",
    "plugins/logbus/kafka/client.py",
    "plugins/logbus/kafka/exact_reader.py",
    "plugins/logbus/loads/attempts.py",
    "plugins/logbus/windows/catch_up.py",
    "plugins/logbus/windows/freezing.py",
    "plugins/logbus/windows/missing.py",
    "plugins/logbus/windows/log_changes.py",
    "plugins/logbus/loads/audit.py",
    "plugins/logbus/web/cells.py",
    "plugins/logbus/loads/commit.py",
    "plugins/logbus/loads/redrive.py",
    "spark_jobs/logbus_spark/application.py",
    "spark_jobs/logbus_spark/load_task.py",
)

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A file of the product. Lines of code are neither comments nor docstrings nor blank ones."""

    path: str
    tree: ast.Module
    code_lines: int
    comment_lines: int


@cache
def modules() -> Sequence[Module]:
    return [read_module(path) for room in ROOMS for path in sorted((PROJECT / room).rglob("*.py"))]


def read_module(path: Path) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node, clean=False)]
    prose = {line for first in firsts for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    code = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)} - prose
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return Module(path=str(path.relative_to(PROJECT)), tree=tree, code_lines=len(code), comment_lines=len(comments))


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_few_modules_are_smaller_than_the_noun_that_they_are_named_after() -> None:
    small = [module.path for module in modules() if 0 < module.code_lines < SMALL_LINES_MAX]
    assert len(small) <= SMALL_MODULES_MAX, f"does one of these belong into another module? {small}"


def test_comments_say_why_where_it_was_hard() -> None:
    by_path = {module.path: module for module in modules()}
    hard = [by_path[path] for path in HARD_FILES]
    poor = [one.path for one in hard if 100 * one.comment_lines < COMMENTS_IN_HARD_FILES_MIN * one.code_lines]
    assert poor == []
    comments, code = sum(one.comment_lines for one in modules()), sum(one.code_lines for one in modules())
    assert 100 * comments >= COMMENTS_MIN * code, f"{comments} comment lines to {code} lines of code"


def test_what_the_longest_tests_import_is_there() -> None:
    """They run seldom, and nothing else would notice that they cannot even be collected. Read, since importing takes seconds."""
    for path in sorted((PROJECT / "tests" / "soak").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                places = [PROJECT / root / str(node.module).replace(".", "/") for root in ("", "plugins", "broker", "spark_jobs")]
                sources = [
                    file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()
                ]
                names = [alias.name for alias in node.names if not any((place / f"{alias.name}.py").exists() for place in places)]
                gone = [name for name in names if not all(is_bound(name, file) for file in sources)]
                assert gone == [], f"{path.name}: {node.module} has no {', '.join(gone)}"


def is_bound(name: str, path: Path) -> bool:
    """Whether a module defines or imports the name."""
    return (
        re.search(rf"^(?:(?:async )?def |class |    )?{name}\b|import .*\b{name}\b", path.read_text(), re.MULTILINE) is not None
    )


def test_a_message_is_asked_for_its_headers_in_one_place_only() -> None:
    """Anywhere else a header name that is not UTF-8 ends the process: see `logbus.fingerprint.headers_of_all`."""
    ours = [module for module in modules() if module.path.startswith(("plugins/", "spark_jobs/"))]
    asking = {module.path for module in ours if any(map(asks_for_headers, ast.walk(module.tree)))}
    assert asking == set()


def asks_for_headers(node: ast.AST) -> bool:
    """`message.headers()` or `Message.headers`; `request.headers` is another thing."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "headers" and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "headers" and ast.unparse(node.value) == "Message"


def test_names_say_what_they_hold() -> None:
    for path in (path for room in ROOMS for path in (PROJECT / room).rglob("*.py")):
        for name, line in bindings(ast.parse(path.read_text())):
            assert name not in PRONOUNS, f"{path.relative_to(PROJECT)}:{line}: `{name}` does not say what it holds"
