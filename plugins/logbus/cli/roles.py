"""`logbus roles`: the roles that own, load and read a warehouse (logbus.loads.roles), on a server of one's own.

`logbus up`, the demo and the containers have them from the start.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

import click
from sqlalchemy import Connection, text

from logbus import atomic_write, errors
from logbus.cli import options, output
from logbus.loads import engine, roles
from logbus.windows import table_names

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
def command(warehouse_url: str, airflow_database: str | None, password_file: Path | None, is_executed: bool) -> None:
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
