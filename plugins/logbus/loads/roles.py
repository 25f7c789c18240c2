"""The roles of a warehouse: who owns what is in it, who loads, who reads; and what Spark's tasks log in with: users of the
driver's own, who may read the offsets of one job and append to the tables of its attempts, as long as the job runs.

    logbus_owner    owns the ledger, the tables that loads create, and their partitions; nobody logs in as it
    logbus_loader   tasks, commands and Spark: logs in, and acts as the owner from then on
    logbus_reader   people and their tools: reads the ledger and these tables, but not what a running load has staged
    logbus_ui       the pages and the exporter: reads the same, by a login of its own
    logbus_task_..  the tasks of one Spark job, while it runs: append to the tables of its attempts
    airflow         owns Airflow's database, which none of the others can connect to, nor it to theirs

None is a superuser, may create roles or databases, or run programs on the server. A load makes a table for each hour, so the
rights of readers are default privileges of the owner and hold for tables that are yet to come. The statements may be carried out
again at any time. A table that no load created stays its owner's, and the loader gets what loading into it takes.

The owner makes the logins of tasks by two functions, which have the rights of the administrator who made them. So they read
nothing but the server's own catalogs: a table of the ledger is the owner's, who could put a view with code of his in its place.

A task's login at our broker is a user `airflow/KEY`, which the driver's user `airflow` may make, with ACLs for ranges of offsets;
in the warehouse it is a role `logbus_task_KEY`, made by functions of `logbus roles`. KEY is that of the job's first attempt. Both
are deleted when the job ends, before anything is sealed: whatever a task still does then is refused, also on open connections.
What a killed driver leaves is in the ledger, which is written first, and is deleted by the next load of the pipeline.

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
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from logbus import errors, model
from logbus.kafka import acls, users
from logbus.kafka.client import Client
from logbus.loads import attempts as attempts_of
from logbus.loads import target
from logbus.loads.engine import CONNECT_TIMEOUT_SECONDS, libpq_uri
from logbus.windows import schema, sql_errors, table_names
from logbus.windows.rows import ATTEMPT_RUNNING
from logbus.windows.table_names import TableName, identifier, tables_of_attempt

TASKS = "logbus_tasks"  # may connect, and see that there are tables of attempts: what all logins of tasks are members of
OWNER, LOADER, READER, UI, AIRFLOW = "logbus_owner", "logbus_loader", "logbus_reader", "logbus_ui", "airflow"
LOGINS = (LOADER, READER, UI)
READ_SCHEMAS = (table_names.SCHEMA, table_names.LEAF_SCHEMA)
OWNED_SCHEMAS = (*READ_SCHEMAS, table_names.STAGING_SCHEMA)

# Sequences of columns follow their tables.
OF_OTHER_OWNERS = text("""
    select case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence' else 'table' end kind,
           format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = any(:schemas) and c.relkind in ('r', 'p', 'v', 'm', 'S') and pg_get_userbyid(c.relowner) <> :role
      and (c.relkind <> 'S' or not exists (select from pg_depend d where d.objid = c.oid and d.deptype in ('a', 'i')))
    union all
    select 'type', format('%I.%I', n.nspname, t.typname)
    from pg_type t join pg_namespace n on n.oid = t.typnamespace
    where n.nspname = any(:schemas) and t.typtype in ('e', 'd') and pg_get_userbyid(t.typowner) <> :role
    order by 1, 2
""")
OWNER_OF = text("select pg_get_userbyid(relowner) from pg_class where oid = to_regclass(:name)")
TASK_LOGIN = "^logbus_task_[0-9a-f]{16}$"
TASK_LOGINS_MAX = 1_000  # that are there at the same time, by all loads of the server
TASK_LOGIN_DAYS = 7  # longer than any job; then nobody can log in as what a killed driver has left
VERIFIER = "^SCRAM-SHA-256[$][0-9]+:[A-Za-z0-9+/=]+[$][A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$"
MAKE_TASK_LOGIN, DROP_TASK_LOGIN = f"{table_names.SCHEMA}.make_task_login", f"{table_names.SCHEMA}.drop_task_login"
DEFINED = "language plpgsql security definer set search_path = pg_catalog, pg_temp as $$"
TASK_FUNCTIONS = {
    f"{MAKE_TASK_LOGIN}(login text, verifier text)": f"""returns void {DEFINED}
begin
  if login !~ '{TASK_LOGIN}' or verifier !~ '{VERIFIER}'
      or (select count(*) from pg_roles where rolname ~ '{TASK_LOGIN}') >= {TASK_LOGINS_MAX} then
    raise exception 'no login of tasks, or one too many: %', login;
  end if;
  execute format('create role %I login in role {TASKS} password %L valid until %L',
    login, verifier, now() + interval '{TASK_LOGIN_DAYS} days');
end $$""",
    f"{DROP_TASK_LOGIN}(login text)": f"""returns void {DEFINED}
begin
  if login !~ '{TASK_LOGIN}' then
    raise exception 'no login of tasks: %', login;
  end if;
  execute format('drop role if exists %I', login);
end $$""",
}
MAKES_TASK_LOGINS = text("select to_regprocedure(:name) is not null")
STAGED = text("select tablename from pg_tables where schemaname = :schema and tablename = any(:names)")
MAY_INSERT = text("""
    select distinct c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace, aclexplode(c.relacl) a
    where n.nspname = :schema and a.grantee = (select oid from pg_roles where rolname = :login)
""")
MAY_MAKE_ROLES = text("select rolsuper, rolsuper or rolcreaterole from pg_roles where rolname = current_user")


def warehouse_statements(connection: Connection, *, apart: bool = False) -> list[str]:
    """What makes the roles and gives them the database of this connection. `apart`: nobody else may connect to it."""
    database, membership = current_database(connection), needed_membership(connection, OWNER)
    return [
        *created(connection, {OWNER: "nologin", TASKS: "nologin", **dict.fromkeys(LOGINS, "login")}),
        *membership,
        f"grant {READER} to {UI}",
        *(
            statement
            for loader in (LOADER, *former_owners(connection))
            for statement in (f"grant {OWNER} to {loader}", f"alter role {loader} in database {database} set role = {OWNER}")
        ),
        *([f"revoke connect, temporary on database {database} from public"] if apart else []),
        f"grant connect, create on database {database} to {OWNER}",
        f"grant connect on database {database} to {READER}",
        *schema_statements(connection),
        *task_login_statements(database),
        *owned_by(connection, OWNER, OWNED_SCHEMAS),
        *(f"grant select on all tables in schema {name} to {READER}" for name in READ_SCHEMAS),
        *(statement for table in loaded_tables(connection).items() for statement in table_statements(connection, *table)),
        # Last: a schema of attempts that is made above is not for readers.
        f"alter default privileges for role {OWNER} grant select on tables to {READER}",
        f"alter default privileges for role {OWNER} grant usage on schemas to {READER}",
    ]


def task_login_statements(database: str) -> list[str]:
    """What lets the owner make logins of tasks, and nobody else."""
    return [
        f"grant connect on database {database} to {TASKS}",
        f"grant usage on schema {table_names.STAGING_SCHEMA} to {TASKS}",
        *(
            statement
            for signature, definition in TASK_FUNCTIONS.items()
            for statement in (
                f"drop function if exists {signature}",  # of another administrator, maybe: the schema's owner may drop it
                f"create function {signature} {definition}",
                f"revoke all on function {signature} from public",
                f"grant execute on function {signature} to {OWNER}",
            )
        ),
    ]


def airflow_statements(connection: Connection) -> list[str]:
    """What gives the database of this connection to Airflow's role, and to nobody else."""
    database, membership = current_database(connection), needed_membership(connection, AIRFLOW)
    return [
        *created(connection, {AIRFLOW: "login"}),
        *membership,
        f"alter database {database} owner to {AIRFLOW}",
        f"revoke connect, temporary on database {database} from public",
        *owned_by(connection, AIRFLOW, [table_names.SCHEMA_DEFAULT]),
    ]


def needed_membership(connection: Connection, role: str) -> list[str]:
    """Who gives something to a role has to be a member of it, or a superuser. `UserError` for one who may make no roles."""
    is_superuser, may_make_roles = connection.execute(MAY_MAKE_ROLES).one()
    if not may_make_roles:
        raise errors.UserError(
            "this user of the server may make no roles: name one who may in the warehouse's URL, such as the superuser postgres"
        )
    return [] if is_superuser else [f"grant {role} to current_user"]


def act_as_oneself(connection: Connection) -> None:
    """Sessions of who owned the ledger before begin as its owner now."""
    connection.execute(text("set role none"))


def carry_out(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(text(statement.replace(":", r"\:")))


def prepare(warehouse: Engine, airflow: Engine | None = None) -> None:
    """The databases of a server that is ours alone."""
    with warehouse.begin() as connection:
        carry_out(connection, warehouse_statements(connection, apart=True))
    if airflow is not None:
        with airflow.begin() as connection:
            carry_out(connection, airflow_statements(connection))


def set_passwords(connection: Connection, passwords: Mapping[str, str]) -> None:
    for role, password in passwords.items():
        carry_out(connection, [f"alter role {role} password '{verifier_of(connection, role, password)}'"])


def verifier_of(connection: Connection, role: str, password: str) -> str:
    """What the server compares a login with. It never gets a password: it writes statements to its log."""
    client: Any = connection.connection.driver_connection
    verifier: str = client.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    return verifier


def make_task_login(connection: Connection, login: str, password: str, tables: Iterable[TableName]) -> None:
    """A login that may append to these tables, and do nothing else."""
    parameters = {"login": login, "verifier": verifier_of(connection, login, password)}
    connection.execute(text(f"select {MAKE_TASK_LOGIN}(:login, :verifier)"), parameters)
    names = {"schema": table_names.STAGING_SCHEMA, "names": [table.name for table in tables]}
    if present := connection.scalars(STAGED, names).all():  # rows of some sinks are in files; a newer attempt drops them
        carry_out(connection, [f"grant insert on {staged(present)} to {identifier(login)}"])


def staged(names: Iterable[str]) -> str:
    """Tables of attempts, as a statement lists them."""
    return ", ".join(TableName(name=name, schema=table_names.STAGING_SCHEMA).identifier for name in names)


def drop_task_login(connection: Connection, login: str) -> None:
    """Takes its rights, also from those who are logged in, and drops it."""
    parameters = {"schema": table_names.STAGING_SCHEMA, "login": login}
    if names := connection.scalars(MAY_INSERT, parameters).all():
        carry_out(connection, [f"revoke all on {staged(names)} from {identifier(login)}"])
    connection.execute(text(f"select {DROP_TASK_LOGIN}(:login)"), {"login": login})


def current_database(connection: Connection) -> str:
    return identifier(connection.execute(text("select current_database()")).scalar_one())


def created(connection: Connection, roles: Mapping[str, str]) -> list[str]:
    """Those that are missing, with what they may."""
    present = set(connection.scalars(text("select rolname from pg_roles where rolname = any(:names)"), {"names": list(roles)}))
    return [f"create role {name} {may}" for name, may in roles.items() if name not in present]


def former_owners(connection: Connection) -> list[str]:
    """Who has loaded before there were roles, and goes on; not a superuser, who may anyway."""
    query = text(
        "select distinct rolname from pg_namespace join pg_roles on pg_roles.oid = nspowner "
        "where nspname = :ledger and not rolsuper and rolname <> :owner"
    )
    return [identifier(name) for name in connection.scalars(query, {"ledger": table_names.SCHEMA, "owner": OWNER})]


def schema_statements(connection: Connection) -> list[str]:
    """The ledger's schemas, before there is a ledger; and `public`, where the tables of pipelines are by default."""
    rows = connection.execute(text("select nspname, pg_get_userbyid(nspowner) as owner from pg_namespace"))
    owners = {row.nspname: row.owner for row in rows}
    public = [f"grant usage, create on schema public to {OWNER}", f"grant usage on schema public to {READER}"]
    return [
        *(f"create schema {name} authorization {OWNER}" for name in OWNED_SCHEMAS if name not in owners),
        *(f"alter schema {name} owner to {OWNER}" for name in OWNED_SCHEMAS if owners.get(name, OWNER) != OWNER),
        *(public if table_names.SCHEMA_DEFAULT in owners else []),
        *(f"grant usage on schema {name} to {READER}" for name in READ_SCHEMAS),
    ]


def owned_by(connection: Connection, role: str, schemas: Sequence[str]) -> list[str]:
    """What makes the role the owner of all that is in the schemas."""
    others = connection.execute(OF_OTHER_OWNERS, {"schemas": list(schemas), "role": role})
    return [f"alter {row.kind} {row.name} owner to {role}" for row in others]


def loaded_tables(connection: Connection) -> dict[TableName, bool]:
    """Tables of pipelines, aggregates, streams and joins, and whether logbus has made them. Those that are here: the rows of some
    are stored elsewhere."""
    tables: dict[TableName, bool] = {}
    for owner in (schema.pipeline, schema.aggregate, schema.stream, schema.stream_join):
        if target.relation_exists(connection, TableName(name=owner.name, schema=table_names.SCHEMA)):
            for name in connection.scalars(select(owner.c.table_name).order_by("name")):
                table = table_names.parse_table(name)
                tables[table] = owner is not schema.pipeline or target.has_leaves(connection, table)
                if owner is schema.stream:
                    tables[table_names.by_arrival(name)] = True
    return {table: is_ours for table, is_ours in tables.items() if target.relation_exists(connection, table)}


def table_statements(connection: Connection, table: TableName, is_ours: bool) -> list[str]:
    """Rights on a table: the owner's if logbus has made it, what loading takes if it is the user's own."""
    of_schema = identifier(table.schema)
    present_owner = connection.execute(OWNER_OF, {"name": table.identifier}).scalar_one()
    change_of_owner = [f"alter table {table.identifier} owner to {OWNER}"] if present_owner != OWNER else []
    return [
        f"grant usage, create on schema {of_schema} to {OWNER}",
        f"grant usage on schema {of_schema} to {READER}",
        *(change_of_owner if is_ours else [f"grant select, insert, delete on {table.identifier} to {OWNER}"]),
        f"grant select on {table.identifier} to {READER}",
    ]


# What Spark's tasks log in with: users of the driver's own, who may read the offsets of one job and append to the tables of
# its attempts, as long as the job runs. A task's secret that leaks is worth one job's windows, and nothing once they are
# committed.


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
        if "warehouse" not in self.reasons:
            with self.engine.connect() as connection:
                # Whether `logbus roles` has been here, in this version or a later one.
                if not connection.scalar(MAKES_TASK_LOGINS, {"name": f"{MAKE_TASK_LOGIN}(text, text)"}):
                    self.reasons["warehouse"] = NO_ROLES
        # What will have to be deleted, by the names in the ledger.
        user = {} if "broker" in self.reasons else {"user": f"{self.owner}/{key}", "mechanism": self.mechanism}
        role = {} if "warehouse" in self.reasons else {"role": f"logbus_task_{key}"}
        logins = {"key": key, **user, **role} if user or role else {}
        before = dict(logins), dict(self.reasons)
        self._write_down(attempts, logins)
        try:
            url = self._make_role(logins, password, attempts) or self.engine.url
            client_config = self._make_user(logins, password, windows) or self.client.broker_config
            if (logins, self.reasons) != before:
                self._write_down(attempts, logins)
            yield TaskLogin(client_config=client_config, warehouse_url=url)
        finally:
            self._void(logins)

    def void_left_over(self, pipeline_name: str) -> None:
        """Deletes what drivers that were killed have left, and what newer attempts have superseded."""
        with self.engine.connect() as connection:
            left = left_over_logins(connection, pipeline_name)
        for logins in left:
            self._void(logins)

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
                make_task_login(connection, role, password, tables)
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
        return {**self.client.broker_config, "sasl.username": user, "sasl.password": password}

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
                    drop_task_login(connection, logins["role"])
                connection.execute(sa.update(row).where(*is_named).values(task_logins=None))
        except (errors.LogbusError, SQLAlchemyError) as error:
            logger.warning("the logins of a job's tasks are left to the next load: %s", _first_line(error))


def left_over_logins(connection: sa.Connection, pipeline_name: str) -> list[Mapping[str, Any]]:
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


def login_names(logins: Mapping[str, Any]) -> list[str]:
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
