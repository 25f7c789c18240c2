"""The reference of the addresses below /logbus in Airflow: method, path and description of each route, read from the source.

Read, not imported: Airflow takes seconds. A route is a function with a decorator such as `@router.get("/overview")`; its module
defines the path's prefix in `router = APIRouter(prefix=...)`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts.site.tables import code, plain, table

ROOM = Path(__file__).parents[2] / "plugins" / "logbus" / "ui"
MOUNTED_AT = "/logbus"
METHODS = ("get", "post", "put", "delete")

INTRODUCTION = """# Addresses in Airflow

What Airflow serves below `/logbus`, for pages and for programs, made from `plugins/logbus/ui/`. All but scripts and styles asks
who is there: send the token that `POST /auth/token` gives, as for Airflow's own API. `START` is where an hour begins,
`2026-11-21T10:00:00Z`. Errors are `{"detail": "..."}`, a sentence that says what to do. [Who sees what](../ui.md#who-sees-what).

"""


def routes_page() -> str:
    found = sorted(route for path in sorted(ROOM.glob("*.py")) for route in routes(ast.parse(path.read_text())))
    rows = ([method.upper(), code(path), plain(text)] for path, method, text in found)
    return INTRODUCTION + table(("method", "address", "what it gives or does"), rows) + "\n"


def routes(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Path, method and docstring of each route of a module."""
    prefixes = dict(prefix for node in module.body if (prefix := router_prefix(node)) is not None)
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if (found := decorated(decorator)) is not None:
                    router, method, path = found
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
