"""What Spark's tasks log in with: users of the driver's own, who may read the offsets of one job and append to the tables of its
attempts, as long as the job runs. A task's secret that leaks is worth one job's windows, and nothing once they are committed.

At our broker it is a user `airflow/KEY`, which the driver's user `airflow` may make, with ACLs for ranges of offsets. In the
warehouse it is a role `logbus_task_KEY`, made by functions of `logbus roles`. KEY is that of the job's first attempt. Both are
deleted when the job ends, before anything is sealed: whatever a task still does then is refused, also on open connections. What a
killed driver leaves is in the ledger, which is written first, and is deleted by the next load of the pipeline.

Where a server does not make such logins (another Kafka, a broker without logins or ACLs, a warehouse without these roles), the
tasks log in as the driver does, and the ledger says why. Nothing of exactly-once depends on any of this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from logbus import errors, model
from logbus.kafka import acls, users
from logbus.kafka.client import Client
from logbus.loads import attempts as attempts_of
from logbus.loads import roles
from logbus.loads.engine import CONNECT_TIMEOUT_SECONDS, libpq_uri
from logbus.windows import schema, sql_errors
from logbus.windows.rows import ATTEMPT_RUNNING
from logbus.windows.table_names import tables_of_attempt

NO_LOGIN = "the broker asks for no login by a password"
NO_ROLES = "the warehouse has no roles for tasks (`logbus roles` makes them)"

logger = logging.getLogger("logbus.loads")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLogin:
    """What the tasks of one job get: a client configuration, and the warehouse's URL."""

    client_config: Mapping[str, Any] = field(repr=False)
    warehouse_url: sa.URL = field(repr=False)


class TaskLogins:
    """Of one driver, which logs in by `client` and `engine`."""

    def __init__(self, engine: sa.Engine, client: Client) -> None:
        self.engine = engine
        self.client = client
        self.owner = str(client.config.get("sasl.username") or "")
        mechanism = str(client.config.get("sasl.mechanism") or client.config.get("sasl.mechanisms") or "")
        self.mechanism = mechanism if mechanism in users.MECHANISMS else next(iter(users.MECHANISMS))  # PLAIN: any will do
        # Why there are none, by server: found out once, and not at each job.
        self.reasons: dict[str, str] = {} if self.owner else {"broker": NO_LOGIN}
        self._is_checked = False

    @contextmanager
    def for_job(self, attempts: Sequence[model.Attempt], windows: Sequence[model.FrozenWindow]) -> Iterator[TaskLogin]:
        """Made for the job, void after it."""
        key, password = attempts[0].key, users.random_password()
        logins = self._planned(key)
        before = dict(logins), dict(self.reasons)
        self._write_down(attempts, logins)
        try:
            url = self._make_role(logins, password, attempts) or self.engine.url
            client_config = self._make_user(logins, password, windows) or self.client.config
            if (logins, self.reasons) != before:
                self._write_down(attempts, logins)
            yield TaskLogin(client_config=client_config, warehouse_url=url)
        finally:
            self._void(logins)

    def void_left_over(self, pipeline_name: str) -> None:
        """Deletes what drivers that were killed have left, and what newer attempts have superseded."""
        with self.engine.connect() as connection:
            left = left_over(connection, pipeline_name)
        for logins in left:
            self._void(logins)

    def _planned(self, key: str) -> dict[str, str]:
        """What will have to be deleted, by the names in the ledger."""
        if "warehouse" not in self.reasons:
            with self.engine.connect() as connection:
                if not roles.makes_task_logins(connection):
                    self.reasons["warehouse"] = NO_ROLES
        user = {"user": f"{self.owner}/{key}", "mechanism": self.mechanism}
        role = {"role": f"logbus_task_{key}"}
        planned = ({} if "broker" in self.reasons else user) | ({} if "warehouse" in self.reasons else role)
        return {"key": key, **planned} if planned else {}

    def _write_down(self, attempts: Sequence[model.Attempt], logins: Mapping[str, str]) -> None:
        note = "; ".join(self.reasons[server] for server in sorted(self.reasons))
        values = {"task_logins": dict(logins) or None, "task_logins_note": note}
        with self.engine.begin() as connection:
            connection.execute(sa.update(schema.attempt).where(attempts_of.among_attempts(attempts)).values(values))

    def _make_role(self, logins: Mapping[str, str], password: str, attempts: Sequence[model.Attempt]) -> sa.URL | None:
        """The warehouse's URL with the role; None where there is none."""
        if (role := logins.get("role")) is None:
            return None
        named = [tables_of_attempt(attempt.staging_table) for attempt in attempts]
        tables = [table for names in named for table in (names.rows, names.dead_letters)]
        url = self.engine.url.set(username=role, password=password)
        try:
            with self.engine.begin() as connection:
                roles.make_task_login(connection, role, password, tables)
            if not self._is_checked:  # a server may let in those alone whom its pg_hba.conf names
                psycopg.connect(libpq_uri(url, connect_timeout=str(CONNECT_TIMEOUT_SECONDS))).close()
                self._is_checked = True
        except (SQLAlchemyError, psycopg.Error) as error:
            self.reasons["warehouse"] = f"the warehouse refuses a role for tasks: {_first_line(error)}"
            return None
        return url

    def _make_user(
        self, logins: dict[str, str], password: str, windows: Sequence[model.FrozenWindow]
    ) -> Mapping[str, Any] | None:
        """The client configuration of the user; None where there is none."""
        if (user := logins.get("user")) is None:
            return None
        try:
            users.RangeReaders(self.client).add(user, password, self.mechanism, joined(windows))
        except errors.LogbusError as error:
            # Not what it says to do: who may alter the cluster may do everything.
            is_refused = isinstance(error, errors.AccessDenied)
            self.reasons["broker"] = f"the broker lets {self.owner} make no users of its own" if is_refused else str(error)
            if not isinstance(error, errors.BrokerUnavailable):  # then some of it may be there
                del logins["user"]
            return None
        return {**self.client.config, "sasl.username": user, "sasl.password": password}

    def _void(self, logins: Mapping[str, str]) -> None:
        """What cannot be deleted now stays in the ledger, for the next load."""
        if not logins:
            return
        row = schema.attempt
        is_named = (row.c.task_logins.is_not(None), row.c.task_logins["key"].astext == logins["key"])
        try:
            if "user" in logins:
                users.RangeReaders(self.client).delete(logins["user"], logins["mechanism"])
            with self.engine.begin() as connection:
                if "role" in logins:
                    roles.drop_task_login(connection, logins["role"])
                connection.execute(sa.update(row).where(*is_named).values(task_logins=None))
        except (errors.LogbusError, SQLAlchemyError) as error:
            logger.warning("the logins of a job's tasks are left to the next load: %s", _first_line(error))


def left_over(connection: sa.Connection, pipeline_name: str) -> list[Mapping[str, Any]]:
    """Logins of tasks of whose attempts none is running."""
    row, other, window = schema.attempt, schema.attempt.alias("other"), schema.window
    key = row.c.task_logins["key"].astext
    at_work = (other.c.task_logins.is_not(None), other.c.task_logins["key"].astext == key, other.c.state == ATTEMPT_RUNNING)
    query = (
        sa.select(row.c.task_logins)
        .distinct()
        .join(window, window.c.id == row.c.window_id)
        .where(row.c.task_logins.is_not(None), window.c.pipeline == pipeline_name, ~sa.exists().where(*at_work))
    )
    return list(connection.scalars(query))


def names_of(logins: Mapping[str, Any]) -> list[str]:
    return [logins[kind] for kind in ("user", "role") if kind in logins]


def joined(windows: Iterable[model.FrozenWindow]) -> list[acls.AclRange]:
    """What the windows hold, in as few ranges as possible."""
    parts = [part for window in windows for part in window.ranges if part.count]
    ranges: list[acls.AclRange] = []
    for part in sorted(parts, key=lambda part: (part.partition, part.readable_from)):
        last = ranges[-1] if ranges else None
        if last is not None and last.partition == part.partition and last.end >= part.readable_from:
            ranges[-1] = last._replace(end=max(last.end, part.end_offset))
        else:
            ranges.append(acls.AclRange(part.topic, part.partition, part.readable_from, part.end_offset))
    return ranges


def _first_line(error: Exception) -> str:
    reason = sql_errors.reason_of(error) if isinstance(error, sa.exc.DBAPIError) else str(error)
    return reason.strip().partition("\n")[0]
