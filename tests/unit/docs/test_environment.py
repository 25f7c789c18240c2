"""Every environment variable that a page or a message names is read somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.pages import PAGES, PROJECT

NAME = r"LOGBUS_[A-Z][A-Z_]*[A-Z]"
PRODUCT = ("plugins", "spark_jobs", "broker", "dags", "scripts")
CONTAINERS = ("docker", "docker-compose.airflow.yml", "docs/prometheus", "scripts")
# Names that only look like ours: a marker in the Spark application's output, click's for completion, a shell's, the tests'.
OTHERS = {"LOGBUS_RESULT", "LOGBUS_DRIVER", "LOGBUS_COMPLETE", "LOGBUS_FOUND", "LOGBUS_TEST_BROKER"}


def texts(places: tuple[str, ...], *suffixes: str) -> Iterator[str]:
    for place in places:
        path = PROJECT / place
        for found in [path] if path.is_file() else sorted(path.rglob("*")):
            if found.is_file() and (not suffixes or found.suffix in suffixes) and "__pycache__" not in found.parts:
                yield found.read_text(errors="replace")


def test_every_variable_that_is_named_is_read_by_something() -> None:
    code = list(texts(PRODUCT, ".py"))
    named = {name for text in (*code, *map(Path.read_text, PAGES)) for name in re.findall(NAME, text)}
    read = {name for text in code for name in re.findall(rf'"({NAME})"', text)}
    read |= {
        name for text in texts(CONTAINERS) for name in re.findall(rf"\$\{{?({NAME})|\b({NAME})=", text) for name in name if name
    }
    assert len(named) > 10
    assert named - read - OTHERS == set()
