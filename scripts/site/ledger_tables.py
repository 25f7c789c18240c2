"""The reference of the ledger's tables: columns as SQLAlchemy defines them, descriptions from `ledger/schema.py`.

A table's description is in the module's docstring; a column's is the comment after it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

from logbus.ledger import schema
from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql

from scripts.site.tables import code, plain, table

INTRODUCTION = """# Ledger tables

The schema `logbus` in the warehouse's PostgreSQL, made from `plugins/logbus/ledger/schema.py`. Read them as you like (a
dashboard, a report); write to them through logbus only: what holds between them is kept by its code, under its locks. They
change by revisions (`logbus ledger version`), which only ever add.

"""
SENTENCE = re.compile(r"^    (?P<table>\w+) +(?P<text>\S.*)$", re.MULTILINE)
COLUMN = re.compile(r'^    Column\("(?P<column>\w+)".*?\),? *(?:# (?P<comment>.*))?$', re.MULTILINE)
TABLE = re.compile(r"^\w+ = Table\(\s*", re.MULTILINE)
DIALECT = postgresql.dialect()


def ledger_page() -> str:
    """The tables in the order of the module's docstring."""
    texts, comments = sentences(), column_comments()
    tables = {found.name: found for found in schema.metadata.tables.values()}
    return INTRODUCTION + "\n".join(section(tables[name], texts[name], comments.get(name, {})) for name in texts)


def sentences() -> Mapping[str, str]:
    """What each table is for."""
    return {found["table"]: found["text"] for found in SENTENCE.finditer(schema.__doc__ or "")}


def column_comments() -> Mapping[str, Mapping[str, str]]:
    """The comments by table and column."""
    pieces = TABLE.split(inspect.getsource(schema))[1:]
    return {
        piece.split('"')[1]: {found["column"]: found["comment"] or "" for found in COLUMN.finditer(piece)} for piece in pieces
    }


def section(found: Table, text: str, comments: Mapping[str, str]) -> str:
    rows = table(("column", "type", "", "note"), column_rows(found, comments))
    return f"## {found.name}\n\n{plain(text[:1].upper() + text[1:])}.\n\n{rows}\n"


def column_rows(found: Table, comments: Mapping[str, str]) -> Iterator[list[str]]:
    for column in found.columns:
        yield [code(column.name), column.type.compile(DIALECT).lower(), marks(column), plain(comments.get(column.name, ""))]


def marks(column: Column[object]) -> str:
    """Whether it is a key, references another table, or may be null."""
    references = [f"of {code(key.column.table.name)}" for key in column.foreign_keys]
    primary = ["key"] if column.primary_key else []
    return ", ".join([*primary, *references, *(["may be null"] if column.nullable else [])])
