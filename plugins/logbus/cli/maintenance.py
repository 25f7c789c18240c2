"""`logbus maintain`, `logbus ledger`: upkeep of targets and of the ledger's tables; `logbus roles`: who owns, loads and reads a
warehouse; `logbus airflow setup`: the pool and the connections that our DAGs need, in an Airflow of your own.

Every task and every command upgrades the ledger's tables automatically; `ledger upgrade` does it at a time of your choice.

Roles are there from the start in what `logbus up`, the demo and the containers make.

Run `airflow setup` where the scheduler runs, with its configuration: it writes into Airflow's own database. What exists already
stays, so it may be run again at any time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from logbus import atomic_write, errors, formatting, model, provider, spark_submit
from logbus.cli import options, output
from logbus.loads import engine, roles
from logbus.loads.engine import connect
from logbus.loads.engine import warehouse_url as parse_warehouse_url
from logbus.loads.maintenance import Rebuilt, maintain, rebuild
from logbus.loads.sinks import MaintenanceOptions
from logbus.windows import table_names
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision


@click.command("maintain")
@click.argument("pipelines", nargs=-1)
@click.option(
    "--keep-hourly-days",
    type=click.IntRange(min=0),
    default=35,
    show_default=True,
    help="Days younger than this keep a partition for each hour (PostgreSQL).",
)
@click.option(
    "--keep-replaced-hours",
    type=click.IntRange(min=0),
    default=24,
    show_default=True,
    help="Files that are not, or no longer, public stay this long (Iceberg).",
)
@options.warehouse_option
@options.json_option
def maintain_command(
    pipelines: tuple[str, ...], keep_hourly_days: int, keep_replaced_hours: int, warehouse_url: str, as_json: bool
) -> None:
    """Maintain the targets of PIPELINES, by default of all. May be run at any time, alongside loads and readers."""
    engine = connect(warehouse_url)
    create_ledger(engine)
    maintenance = MaintenanceOptions(
        now=options.clock(),
        sleep=time.sleep,
        keep_hourly=timedelta(days=keep_hourly_days),
        keep_replaced=timedelta(hours=keep_replaced_hours),
    )
    done = maintain(engine, maintenance, pipelines)
    if as_json:
        output.show_json(done)
        return
    for name, lines in done.items():
        for line in lines or ["nothing to do"]:
            output.echo(f"{name}: {line}")


@click.group("ledger")
def ledger_command() -> None:
    """The ledger's own tables."""


@ledger_command.command("upgrade")
@options.warehouse_option
def upgrade(warehouse_url: str) -> None:
    """Create the ledger, or upgrade it; does nothing if it is up to date."""
    engine = connect(warehouse_url)
    before = ledger_revision(engine)
    create_ledger(engine)
    output.echo(f"the ledger is at version {REVISION}" + ("" if before == REVISION else f"; it was {described(before)}"))


@ledger_command.command("version")
@options.warehouse_option
@options.json_option
def version(warehouse_url: str, as_json: bool) -> None:
    """Print the version of the ledger in the warehouse, and the one that this logbus needs."""
    revision = ledger_revision(connect(warehouse_url))
    if as_json:
        output.show_json({"ledger": revision, "logbus": REVISION})
        return
    output.echo(f"ledger: {described(revision)}; this logbus: {REVISION}")


@ledger_command.command("rebuild")
@options.pipeline_option
@options.warehouse_option
@options.json_option
def rebuild_windows(pipeline_name: str, warehouse_url: str, as_json: bool) -> None:
    """Rebuild a pipeline's windows from its Iceberg table, after the ledger was lost.

    Register the pipeline first, as it was. Windows that are in the ledger already stay as they are.
    """
    engine = connect(warehouse_url)
    create_ledger(engine)
    done = rebuild(engine, pipeline_name)
    if as_json:
        output.show_json(summary(done))
    else:
        tell(done, pipeline_name)
    if done.refused:
        raise errors.LogbusError(f"{len(done.refused)} windows could not be rebuilt: " + "; ".join(done.refused))


def tell(done: Rebuilt, pipeline_name: str) -> None:
    output.echo(f"{formatting.many(len(done.rebuilt), 'window')} rebuilt, {len(done.unchanged)} in the ledger already")
    if done.rebuilt:
        output.echo(f"audit them: logbus load --pipeline {pipeline_name} --only-missing")
    for interval in done.without_dead_letters:
        output.echo(f"{model.instant_text(interval.start)} had dead letters, which were lost with the ledger: load it again")


def summary(done: Rebuilt) -> dict[str, Any]:
    """As JSON-ready values: windows by where they start."""
    kinds = {"rebuilt": done.rebuilt, "unchanged": done.unchanged, "without_dead_letters": done.without_dead_letters}
    starts = {name: [model.instant_text(interval.start) for interval in intervals] for name, intervals in kinds.items()}
    return {**starts, "refused": list(done.refused)}


def described(revision: str | None) -> str:
    return revision or "none"


# `logbus roles`: the roles that own, load and read a warehouse (logbus.loads.roles), on a server of one's own.


DATABASE_EXISTS = text("select exists(select from pg_database where datname = :name)")
PASSWORD_BYTES = 16


@click.command("roles")
@options.warehouse_option
@click.option(
    "--airflow-database",
    metavar="NAME",
    help="Also give this database to Airflow, as the role airflow, and keep it and the warehouse apart. Made if it is missing.",
)
@click.option(
    "--passwords",
    "password_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Set the passwords of this file, lines of ROLE=PASSWORD; missing ones are made up and added to it.",
)
@options.execute_option
def roles_command(warehouse_url: str, airflow_database: str | None, password_file: Path | None, is_executed: bool) -> None:
    """Make the warehouse's roles logbus_owner, logbus_loader, logbus_reader and logbus_ui, and give them what is there.

    The warehouse's URL names a user who may make roles, such as the superuser. Prints the statements; with --execute they are
    carried out, and may be again at any time.
    """
    administrator = engine.connect(warehouse_url)
    with administrator.begin() as connection:
        roles.act_as_oneself(connection)
        apply(connection, roles.warehouse_statements(connection, apart=airflow_database is not None), is_executed)
    if airflow_database is not None:
        with administrator.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            roles.act_as_oneself(connection)
            is_there = connection.execute(DATABASE_EXISTS, {"name": airflow_database}).scalar_one()
            apply(connection, [] if is_there else [f"create database {table_names.identifier(airflow_database)}"], is_executed)
        if is_there or is_executed:
            with engine.connect(administrator.url.set(database=airflow_database)).begin() as connection:
                apply(connection, roles.airflow_statements(connection), is_executed)
    logins = (*roles.LOGINS, *([roles.AIRFLOW] if airflow_database is not None else []))
    if password_file is not None and is_executed:
        with administrator.begin() as connection:
            roles.act_as_oneself(connection)
            roles.set_passwords(connection, passwords_of(password_file, logins))
        output.echo_err(f"the passwords of {', '.join(logins)} are those of {password_file}")
    if not is_executed:
        output.echo_err("nothing is changed yet: --execute carries this out")


def apply(connection: Connection, statements: Collection[str], is_executed: bool) -> None:
    """Shows the statements, and carries them out if that is wanted."""
    output.echo(*(f"{statement};" for statement in statements))
    if is_executed:
        roles.carry_out(connection, statements)


def passwords_of(path: Path, logins: Collection[str]) -> dict[str, str]:
    """The passwords of the roles; those that the file lacks are made up, and the file is written for its owner only."""
    try:
        lines = path.read_text().splitlines() if path.exists() else []
        given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its lines are ROLE=PASSWORD"
        raise errors.UserError(f"cannot read {path}: {reason}") from None
    if unknown := sorted(given.keys() - set(logins)):
        raise errors.UserError(f"{path} has a password of {unknown[0]!r}: the roles that log in are {', '.join(logins)}")
    passwords = {login: given.get(login) or secrets.token_urlsafe(PASSWORD_BYTES) for login in logins}
    if passwords != given:
        content = "".join(f"{name}={password}\n" for name, password in passwords.items())
        atomic_write.replace_atomically(path, content.encode(), mode=0o600)
    return passwords


# `logbus airflow setup`: the pool and the connections that our DAGs need, in an Airflow of your own.


@click.group("airflow")
def airflow_command() -> None:
    """Prepare an Airflow for logbus."""


@airflow_command.command("setup")
@options.warehouse_option
@options.with_client
@click.option("--master", default=spark_submit.LOCAL_MASTER, show_default=True, help="Where Spark runs.")
@click.option("--slots", type=click.IntRange(1), default=1, show_default=True, help="How many Spark drivers may run in parallel.")
@click.option("--replace", is_flag=True, help="Also change connections that exist already.")
def setup(warehouse_url: str, config: Mapping[str, Any], master: str, slots: int, replace: bool) -> None:
    """Create the pool for loads and the connections kafka_default, warehouse_default and spark_default."""
    connections = {
        "kafka_default": {"conn_type": "kafka", "extra": config},
        "warehouse_default": warehouse_connection(parse_warehouse_url(warehouse_url)),
        "spark_default": {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "client"}},
    }
    make_pool(slots)
    click.echo(f"pool {spark_submit.LOAD_POOL}: {slots} slot{'s' if slots > 1 else ''}")
    for conn_id, fields in connections.items():
        click.echo(
            f"connection {conn_id}: {'created' if make_connection(conn_id, fields, replace) else 'already exists, unchanged'}"
        )


def warehouse_connection(url: URL) -> dict[str, Any]:
    """The fields of the connection that names the same database as the URL."""
    parameters = {key: value for key, value in url.query.items() if key != "host"}
    socket_directory = url.query.get("host")
    return {
        "conn_type": provider.CONNECTION_TYPE,
        "host": socket_directory or url.host,
        "port": url.port,
        "login": url.username,
        "password": url.password,
        "schema": url.database,
        "extra": parameters,
    }


def make_pool(slots: int) -> None:
    from airflow.models.pool import Pool

    Pool.create_or_update_pool(
        spark_submit.LOAD_POOL, slots=slots, description=spark_submit.LOAD_POOL_DESCRIPTION, include_deferred=False
    )


def make_connection(conn_id: str, fields: Mapping[str, Any], replace: bool) -> bool:
    """Whether it was created or replaced now. The password is stored in Airflow's database, encrypted with its key."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        former = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
        if former is not None and not replace:
            return False
        if former is not None:
            session.delete(former)
            session.flush()
        extra = fields.get("extra") or None  # Airflow turns a dictionary into text, but leaves an empty one as it is
        session.add(Connection(conn_id=conn_id, **{**fields, "extra": extra}))
        return True
