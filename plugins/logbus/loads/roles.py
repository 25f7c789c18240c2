"""The roles of a warehouse: who owns what is in it, who loads, who reads. Everything that is said about roles in SQL is here.

    logbus_owner    owns the ledger, the tables that loads create, and their partitions; nobody logs in as it
    logbus_loader   tasks, commands and Spark: logs in, and acts as the owner from then on
    logbus_reader   people and their tools: reads the ledger and these tables, but not what a running load has staged
    logbus_ui       the pages and the exporter: reads the same, by a login of its own
    logbus_task_..  the tasks of one Spark job, while it runs: append to the tables of its attempts (logbus.loads.task_logins)
    airflow         owns Airflow's database, which none of the others can connect to, nor it to theirs

None is a superuser, may create roles or databases, or run programs on the server. A load makes a table for each hour, so the
rights of readers are default privileges of the owner and hold for tables that are yet to come. The statements may be carried out
again at any time. A table that no load created stays its owner's, and the loader gets what loading into it takes.

The owner makes the logins of tasks by two functions, which have the rights of the administrator who made them. So they read
nothing but the server's own catalogs: a table of the ledger is the owner's, who could put a view with code of his in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, select, text

from logbus import errors
from logbus.loads import target
from logbus.windows import schema, table_names
from logbus.windows.table_names import TableName, identifier

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


def makes_task_logins(connection: Connection) -> bool:
    """Whether `logbus roles` has been here, in this version or a later one."""
    return bool(connection.scalar(MAKES_TASK_LOGINS, {"name": f"{MAKE_TASK_LOGIN}(text, text)"}))


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
