"""The roles of a warehouse: who owns what is in it, who loads, who reads. Everything that is said about roles in SQL is here.

    logbus_owner    owns the ledger, the tables that loads create, and their partitions; nobody logs in as it
    logbus_loader   tasks, commands and Spark: logs in, and acts as the owner from then on
    logbus_reader   people and their tools: reads the ledger and these tables, but not what a running load has staged
    logbus_ui       the pages and the exporter: reads the same, by a login of its own
    airflow         owns Airflow's database, which none of the others can connect to, nor it to theirs

None is a superuser, may create roles or databases, or run programs on the server. A load makes a table for each hour, so the
rights of readers are default privileges of the owner and hold for tables that are yet to come. The statements may be carried out
again at any time. A table that no load created stays its owner's, and the loader gets what loading into it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, Engine, select, text

from logbus import errors
from logbus.loads import target
from logbus.windows import schema, table_names
from logbus.windows.table_names import TableName, identifier

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
MAY_MAKE_ROLES = text("select rolsuper, rolsuper or rolcreaterole from pg_roles where rolname = current_user")


def warehouse_statements(connection: Connection, *, apart: bool = False) -> list[str]:
    """What makes the roles and gives them the database of this connection. `apart`: nobody else may connect to it."""
    database, membership = current_database(connection), needed_membership(connection, OWNER)
    return [
        *created(connection, {OWNER: "nologin", **dict.fromkeys(LOGINS, "login")}),
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
        *owned_by(connection, OWNER, OWNED_SCHEMAS),
        *(f"grant select on all tables in schema {name} to {READER}" for name in READ_SCHEMAS),
        *(statement for name in tables_of_pipelines(connection) for statement in table_statements(connection, name)),
        # Last: a schema of attempts that is made above is not for readers.
        f"alter default privileges for role {OWNER} grant select on tables to {READER}",
        f"alter default privileges for role {OWNER} grant usage on schemas to {READER}",
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
    """The server gets what it compares a login with, never a password: it writes statements to its log."""
    client = connection.connection.driver_connection
    for role, password in passwords.items():
        verifier = client.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()  # type: ignore[union-attr]
        carry_out(connection, [f"alter role {role} password '{verifier}'"])


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


def tables_of_pipelines(connection: Connection) -> list[TableName]:
    """Those that are here: the rows of some are stored elsewhere."""
    ledger = TableName(name=schema.pipeline.name, schema=table_names.SCHEMA)
    if not target.relation_exists(connection, ledger):
        return []
    names = map(table_names.parse_table, connection.scalars(select(schema.pipeline.c.table_name).order_by("name")))
    return [name for name in names if target.relation_exists(connection, name)]


def table_statements(connection: Connection, table: TableName) -> list[str]:
    """Rights on a pipeline's table: the owner's if its hours are leaves, what loading takes if it is the user's own."""
    of_schema = identifier(table.schema)
    is_ours = target.has_leaves(connection, table)
    present_owner = connection.execute(OWNER_OF, {"name": table.identifier}).scalar_one()
    change_of_owner = [f"alter table {table.identifier} owner to {OWNER}"] if present_owner != OWNER else []
    return [
        f"grant usage, create on schema {of_schema} to {OWNER}",
        f"grant usage on schema {of_schema} to {READER}",
        *(change_of_owner if is_ours else [f"grant select, insert, delete on {table.identifier} to {OWNER}"]),
        f"grant select on {table.identifier} to {READER}",
    ]
