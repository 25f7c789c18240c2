"""A database connection cut at any point of a program: after any statement, before any commit, after any commit.

`Cut` numbers the points as the program passes them and acts at one of them: `kill` ends the program there (as SIGKILL would, with
no clean-up), `lose` ends the connection there and lets the program continue. At the point after a commit, `lose` discards the
answer: the server has committed, but the program does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine

Act = Callable[[Any], None]


class Killed(BaseException):
    """The process has been killed: no `except Exception` catches it."""


@dataclass
class Cut:
    """Installed on an engine before it is used. `at` is a point's number; None only counts. `passed` describes each point."""

    act: Act
    at: int | None = None
    passed: list[str] = field(default_factory=list)
    is_done: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def on(self, engine: Engine) -> Engine:
        dialect = engine.dialect
        execute, execute_plain, commit = dialect.do_execute, dialect.do_execute_no_params, dialect.do_commit

        def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            execute(cursor, statement, parameters, context)
            self.point(statement, cursor.connection)

        def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
            execute_plain(cursor, statement, context)
            self.point(statement, cursor.connection)

        def do_commit(connection: Any) -> None:
            raw = getattr(connection, "driver_connection", connection)
            self.point("before commit", raw)
            commit(connection)
            if self.point("after commit", raw):
                raise psycopg.OperationalError("server closed the connection unexpectedly")

        dialect.do_execute, dialect.do_execute_no_params, dialect.do_commit = do_execute, do_execute_no_params, do_commit  # type: ignore[method-assign]
        return engine

    def point(self, what: str, connection: Any) -> bool:
        """True if this was the chosen one. Heartbeats, sent by another thread at any time, are not points."""
        if threading.get_ident() != self.thread:
            return False
        number = len(self.passed)
        self.passed.append(" ".join(what.split())[:60])
        if number != self.at or self.is_done:
            return False
        self.is_done = True
        self.act(connection)
        return True


def kill(connection: Any) -> None:
    connection.close()
    raise Killed


def lose(connection: Any) -> None:
    """The server ends the session; the client finds out at its next statement."""
    pid = connection.info.backend_pid
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [pid])
