"""The reference that is generated from code: broker settings, errors, the ledger's tables, addresses in Airflow.

Routes are read, not imported: Airflow takes seconds. A route is a function with a decorator such as `@router.get("/overview")`;
its module defines the path's prefix in `router = APIRouter(prefix=...)`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from logbus import errors
from logbus.windows import schema
from logbus_broker.settings import INT64_MAX, BrokerConfig, LogConfig
from logbus_broker.settings_catalog import ConfigType, DescribedSetting, describe_broker
from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql

from scripts.site.markdown import bytes_in_words, code, milliseconds_in_words, plain, table

BROKER_SETTINGS = """# Broker settings

Made from the broker's own catalogue, which `kafka-configs --describe --all` shows too. Settings stand in a properties file
(`python -m logbus_broker serve --config FILE`) or on the command line (`--override KEY=VALUE`); `python -m logbus_broker
settings` prints a file to start from. Names are Kafka's; what begins with `logbus.` Kafka does not have. The reason of each limit
stands beside it in `broker/logbus_broker/settings.py`.

"""
OF_LOGS = """
## Logs, and what a topic may override

These may be changed while the broker runs, for all topics (`--entity-type brokers`) or, under the
topic's own name for it, for one.

"""
OF_BROKER = "## The broker\n\nThese are read at the start.\n\n"
WORDS = {"bytes": bytes_in_words, "size": bytes_in_words, "ms": milliseconds_in_words}


def settings_page() -> str:
    settings = sorted(describe_broker(BrokerConfig(), ()), key=lambda setting: setting.name)
    broker = table(("setting", "type", "default", "meaning"), (setting_row(setting) for setting in settings if setting.read_only))
    topics = {item.metadata["name"]: item.metadata["topic"] for item in fields(LogConfig)}
    logs = table(("setting", "of a topic", "type", "default", "meaning"), log_rows(settings, topics))
    return f"{BROKER_SETTINGS}{OF_BROKER}{broker}\n{OF_LOGS}{logs}\n"


def log_rows(settings: list[DescribedSetting], topics: dict[str, str]) -> Iterator[list[str]]:
    for setting in settings:
        if not setting.read_only:
            name, *rest = setting_row(setting)
            yield [name, code(topics[setting.name]), *rest]


def setting_row(setting: DescribedSetting) -> list[str]:
    kind = ConfigType(setting.config_type).name.lower()
    return [code(setting.name), kind, default_text(setting), plain(setting.documentation or "")]


def default_text(setting: DescribedSetting) -> str:
    """The default, also in words if its name has a unit."""
    value = setting.value or ""
    if value == str(INT64_MAX):
        return "no limit"
    unit = next((words for name, words in WORDS.items() if name in setting.name.split(".")), None)
    words = unit(int(value)) if unit and value.isdigit() else None
    return f"{code(value)} ({words})" if words else code(value)


ERRORS = """# Errors

Everything logbus raises on purpose, made from `plugins/logbus/errors.py`. The command line prints it as one line,
`error: ...`, that says what happened and what to do; anything else is a defect and keeps its traceback. Scripts look at the
[exit status](../cli.md#exit-statuses). The broker's answers are Kafka's own error codes:
[what happens when](../faults.md) lists which.

"""


def errors_page() -> str:
    return ERRORS + table(("error", "is a", "exit status", "meaning"), error_rows(errors.LogbusError)) + "\n"


def error_rows(kind: type[Exception]) -> Iterator[list[str]]:
    """The error, then those below it."""
    text = inspect.getdoc(kind) or ""
    status = str(int(errors.exit_code_of(kind(""))))
    yield [code(kind.__name__), code(kind.__bases__[0].__name__), status, plain(" ".join(text.split()))]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from error_rows(below)


LEDGER_TABLES = """# Ledger tables

The schema `logbus` in the warehouse's PostgreSQL, made from `plugins/logbus/windows/schema.py`. Read them as you like (a
dashboard, a report); write to them through logbus only: what holds between them is kept by its code, under its locks. They
change by revisions (`logbus ledger version`), which only ever add.

"""
SENTENCE = re.compile(r"^    (?P<table>\w+) +(?P<text>\S.*)$", re.MULTILINE)
COLUMN = re.compile(r'^    sa\.Column\("(?P<column>\w+)".*?\),? *(?:# (?P<comment>.*))?$', re.MULTILINE)
TABLE = re.compile(r"^\w+ = sa\.Table\(\s*", re.MULTILINE)
DIALECT = postgresql.dialect()


def ledger_page() -> str:
    """The tables in the order of the module's docstring."""
    texts, comments = sentences(), column_comments()
    tables = {schema_table.name: schema_table for schema_table in schema.metadata.tables.values()}
    return LEDGER_TABLES + "\n".join(section(tables[name], texts[name], comments.get(name, {})) for name in texts)


def sentences() -> Mapping[str, str]:
    """What each table is for."""
    return {match["table"]: match["text"] for match in SENTENCE.finditer(schema.__doc__ or "")}


def column_comments() -> Mapping[str, Mapping[str, str]]:
    """The comments by table and column."""
    pieces = TABLE.split(inspect.getsource(schema))[1:]
    return {
        piece.split('"')[1]: {match["column"]: match["comment"] or "" for match in COLUMN.finditer(piece)} for piece in pieces
    }


def section(table_: Table, text: str, comments: Mapping[str, str]) -> str:
    rows = table(("column", "type", "", "note"), column_rows(table_, comments))
    return f"## {table_.name}\n\n{plain(text[:1].upper() + text[1:])}.\n\n{rows}\n"


def column_rows(table_: Table, comments: Mapping[str, str]) -> Iterator[list[str]]:
    for column in table_.columns:
        yield [code(column.name), column.type.compile(DIALECT).lower(), marks(column), plain(comments.get(column.name, ""))]


def marks(column: Column[object]) -> str:
    """Whether it is a key, references another table, or may be null."""
    references = [f"of {code(key.column.table.name)}" for key in column.foreign_keys]
    primary = ["key"] if column.primary_key else []
    return ", ".join([*primary, *references, *(["may be null"] if column.nullable else [])])


PAGES_ROOM = Path(__file__).parents[2] / "plugins" / "logbus" / "web"
MOUNTED_AT = "/logbus"
METHODS = ("get", "post", "put", "delete")

ADDRESSES = """# Addresses in Airflow

What Airflow serves below `/logbus`, for pages and for programs, made from `plugins/logbus/web/`. All but scripts and styles asks
who is there: send the token that `POST /auth/token` gives, as for Airflow's own API. `START` is where an hour begins,
`2026-11-21T10:00:00Z`. Errors are `{"detail": "..."}`, a sentence that says what to do. [Who sees what](../ui.md#who-sees-what).

"""


def addresses_page() -> str:
    all_routes = sorted(route for path in sorted(PAGES_ROOM.glob("*.py")) for route in routes(ast.parse(path.read_text())))
    rows = ([method.upper(), code(path), plain(text)] for path, method, text in all_routes)
    return ADDRESSES + table(("method", "address", "what it gives or does"), rows) + "\n"


def routes(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Path, method and docstring of each route of a module."""
    prefixes = dict(prefix for node in module.body if (prefix := router_prefix(node)) is not None)
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if (route := decorated(decorator)) is not None:
                    router, method, path = route
                    text = " ".join((ast.get_docstring(node) or "").split())
                    yield shown(MOUNTED_AT + prefixes.get(router, "") + path), method, text


def router_prefix(node: ast.stmt) -> tuple[str, str] | None:
    """Name and prefix, if the statement creates a router."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="APIRouter"), keywords=keywords)):
            given = {keyword.arg: keyword.value for keyword in keywords}
            prefix = given.get("prefix")
            return name, str(prefix.value) if isinstance(prefix, ast.Constant) else ""
    return None


def decorated(node: ast.expr) -> tuple[str, str, str] | None:
    """Router, method and path, if the decorator defines a route."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=router), attr=method), args=[ast.Constant(value=str(path)), *_]):
            return (router, method, path) if method in METHODS else None
    return None


def shown(path: str) -> str:
    """The path with its parameters as the pages write placeholders."""
    return path.replace("{pipeline}", "PIPELINE").replace("{start}", "START").replace("{page}", "PAGE")
