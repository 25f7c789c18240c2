"""The reference for DAG authors: which classes of the provider are documented. The text is their own docstrings.

Classes are found by reading the source, not by importing it: Airflow takes seconds. A class is on a page if its name ends as is
usual in its folder (`...Operator` in operators/, `...Trigger` in sensors/).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from logbus.pipeline_definition import FIELDS
from logbus.pipeline_settings import SETTINGS
from logbus.provider import KINDS

from scripts.site.markdown import code, plain, table

PACKAGE = Path(__file__).parents[2] / "plugins" / "logbus"
ROOMS: Mapping[str, str] = {"operators": "Operator", "sensors": "Sensor", "triggers": "Trigger", "hooks": "Hook"}

PIPELINES = """# Pipelines

Whole DAGs out of one sentence; [for authors of DAGs](../airflow.md) tells when to take which.

"""
OPTIONS = """
## Options of a pipeline

What `hourly_ingest`, `many_topics` and `catch_up` take by name, and `logbus pipeline register --settings` as JSON. A mistyped
one is an error where the DAG is read. [Parsers](../parsers.md) and [sinks](../sinks.md) say more.

"""
OPERATORS = """# Operators

All that work on windows take `pipeline` (a `Pipeline`, or where it says so the name of a registered one), `windows` (starts of
hours as ISO instants, templated; by default the run's own data interval), `kafka_conn_id` (`kafka_default`) and
`warehouse_conn_id` (`warehouse_default`), and whatever Airflow's own base takes. They are given by name. Those that start Spark
take what `SparkSubmitOperator` takes, too, and wait in the pool `logbus_load`.

"""
SENSORS = """# Sensors

They look once, and only then wait: in the triggerer where `deferrable` says so. They are retried twice.

"""
TRIGGERS = """# Triggers

What sensors defer to, and what an `AssetWatcher` watches.

"""
HOOKS = """# Hooks

Connections turned into clients.

"""
HEADS: Mapping[str, str] = {"operators": OPERATORS, "sensors": SENSORS, "triggers": TRIGGERS, "hooks": HOOKS}
FUNCTIONS = (
    "hourly_ingest",
    "ingest",
    "many_topics",
    "catch_up",
    "hourly_aggregate",
    "windowed_aggregate",
    "windowed_counts",
    "live_rows",
    "joined",
    "Connections",
)
# Only members with a docstring; `members: true` would show every attribute.
MEMBERS = "    options:\n      members: null\n      filters: ['!^_']\n"


def pipelines_page() -> str:
    functions = "\n".join(directive(f"logbus.pipelines.{name}") for name in FUNCTIONS)
    settings = [*FIELDS.items(), *((name, setting.meaning) for name, setting in SETTINGS.items())]
    return (
        PIPELINES
        + functions
        + OPTIONS
        + table(("option", "meaning"), [(code(name), plain(text)) for name, text in settings])
        + "\n"
    )


def room_page(room: str) -> str:
    """A folder's classes in the order of their names, base classes last."""
    options = MEMBERS if room == "hooks" else ""
    return HEADS[room] + "\n".join(directive(path) + options for path in public_classes(room))


def directive(path: str) -> str:
    """The directive that mkdocstrings replaces with the documentation of a class or function."""
    return f"::: {path}\n"


def public_classes(room: str) -> Sequence[str]:
    """Their full names."""
    listed = [(is_base, name, module) for is_base, name, module in classes(PACKAGE / KINDS[room]) if name.endswith(ROOMS[room])]
    return [f"{module}.{name}" for _, name, module in sorted(listed)]


def classes(folder: Path) -> Iterator[tuple[bool, str, str]]:
    """For each class in a folder: whether it is a base class, its name, and its module."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                is_base = (ast.get_docstring(node) or "").startswith("Base of ")
                yield is_base, node.name, f"logbus.{folder.name}.{path.stem}"
