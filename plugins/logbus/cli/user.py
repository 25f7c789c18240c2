"""`logbus user`: who may log in to a cluster by a password (SCRAM), on our broker and on any other Kafka."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from logbus import errors
from logbus.cli import options, output
from logbus.kafka import client_config
from logbus.kafka.client import Client
from logbus.kafka.users import MECHANISMS, ScramUsers, random_password, unknown_user

mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(MECHANISMS), case_sensitive=False),
    help="By which the user may log in; may be repeated. By default each.",
)
write_option = click.option(
    "--write",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Ask for no password: make a random one, and write it, with all else that is needed to connect, to this file for "
    "--client-config and Kafka's own tools. Only its owner can read it.",
)


@click.group("user")
def command() -> None:
    """Users who log in by a password: list, add and remove them, and set passwords.

    A password is asked for, or is the first line of standard input; --write makes one. What a user may do: logbus acl.
    """


@command.command("ls")
@options.with_broker
@options.json_option
def list_users(config: Mapping[str, Any], as_json: bool) -> None:
    """List users and the mechanisms by which they can log in."""
    mechanisms = ScramUsers(Client.for_question(config)).mechanisms()
    if as_json:
        output.show_json([{"user": user, "mechanisms": names} for user, names in mechanisms.items()])
        return
    table = output.Table("user", "mechanisms")
    for user, names in mechanisms.items():
        table.add_row(user, ", ".join(names))
    output.show(table)


@command.command("add")
@click.argument("user")
@mechanism_option
@write_option
@options.with_broker
def add(user: str, mechanisms: Sequence[str], path: Path | None, config: Mapping[str, Any]) -> None:
    """Add a USER, who may do nothing until an ACL allows it."""
    users = ScramUsers(Client.for_question(config))
    if user in users.mechanisms():
        raise errors.UserError(f"there is a user {user!r} already: `logbus user passwd {user}` sets another password")
    set_password(users, user, mechanisms, path)
    output.echo(f"added: user {user}")
    output.echo_err(f"it may do nothing yet: logbus acl add --user {user} --topic NAME read")


@command.command("passwd")
@click.argument("user")
@mechanism_option
@write_option
@options.with_broker
def passwd(user: str, mechanisms: Sequence[str], path: Path | None, config: Mapping[str, Any]) -> None:
    """Set the password of a USER. Who is logged in stays so; new connections need the new one."""
    users = ScramUsers(Client.for_question(config))
    if not (current := users.mechanisms().get(user)):
        raise unknown_user(user)
    set_password(users, user, mechanisms or current, path)
    output.echo(f"changed: the password of user {user}")


@command.command("rm")
@click.argument("user")
@options.execute_option
@options.with_broker
def remove(user: str, is_executed: bool, config: Mapping[str, Any]) -> None:
    """Remove a USER's passwords; its ACLs and its open connections stay. A dry run unless --execute."""
    users = ScramUsers(Client.for_question(config))
    if user not in users.mechanisms():
        raise unknown_user(user)
    if is_executed:
        users.delete(user)
    output.echo(f"{'removed' if is_executed else 'would be removed'}: user {user}")
    output.echo_err(
        f"its ACLs stay: logbus acl rm --user {user}" if is_executed else "dry run: nothing was removed; --execute does it"
    )


def set_password(users: ScramUsers, user: str, mechanisms: Sequence[str], path: Path | None) -> None:
    """The one that is typed, or a random one in a file."""
    mechanisms = mechanisms or tuple(MECHANISMS)
    if path is None:
        users.set_password(user, typed_password(), mechanisms)
        return
    password = random_password()
    settings = client_config.of_user(users.client.config, user, password)
    # Before the cluster has it: a file that cannot be written must not cost the only copy of a password.
    client_config.write(path, settings | {"sasl.mechanism": mechanisms[0]})
    users.set_password(user, password, mechanisms)
    output.echo_err(f"the password is in {path} and nowhere else")


def typed_password() -> str:
    """From the terminal, twice and unseen; or the first line of what is piped in."""
    if output.stdin_is_terminal():
        answer: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return answer
    password = "" if sys.stdin is None else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("a password is needed, as the first line of standard input; --write FILE makes one")
    return password
