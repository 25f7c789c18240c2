"""`logbus user`: users and their passwords; `logbus acl`: ACLs, and which of them decides."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType

from logbus import errors
from logbus.cli import options, output
from logbus.formatting import many
from logbus.kafka import acls, client_config, users
from logbus.kafka.acls import ANY_NAME, CLUSTER_NAME, Acls, Resource
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
def user_command() -> None:
    """Users who log in by a password: list, add and remove them, and set passwords.

    A password is asked for, or is the first line of standard input; --write makes one. What a user may do: logbus acl.
    """


@user_command.command("ls")
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


@user_command.command("add")
@click.argument("user")
@mechanism_option
@write_option
@options.with_broker
def add_user(user: str, mechanisms: Sequence[str], path: Path | None, config: Mapping[str, Any]) -> None:
    """Add a USER, who may do nothing until an ACL allows it."""
    users = ScramUsers(Client.for_question(config))
    if user in users.mechanisms():
        raise errors.UserError(f"there is a user {user!r} already: `logbus user passwd {user}` sets another password")
    set_password(users, user, mechanisms, path)
    output.echo(f"added: user {user}")
    output.echo_err(f"it may do nothing yet: logbus acl add --user {user} --topic NAME read")


@user_command.command("passwd")
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


@user_command.command("rm")
@click.argument("user")
@options.execute_option
@options.with_broker
def remove_user(user: str, is_executed: bool, config: Mapping[str, Any]) -> None:
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


# `logbus acl`: who may do what on a cluster, in the words of kafka-acls, and why; on our broker and on any other Kafka.


PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefixed": ResourcePatternType.PREFIXED}
COLUMNS = ("permission", "principal", "host", "operation", "resource", "name", "pattern")
OPERATIONS: Mapping[str, Sequence[str]] = {
    **{kind.value: operations for kind, operations in users.OPERATIONS.items()},
    "cluster": (*users.OPERATIONS[users.ResourceKind.CLUSTER], "ClusterAction"),
    "transactional-id": ("Describe", "Write"),
}


@click.group("acl")
def acl_command() -> None:
    """ACLs, the rules on who may do what: list, add and remove them, and explain a decision."""


class Operation(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """As kafka-acls writes it, in any case: `DescribeConfigs`, `describe-configs`."""

    name = "operation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AclOperation:
        if isinstance(value, AclOperation):
            return value
        plain = value.replace("-", "").replace("_", "").lower()
        matching = [operation for words, operation in acls.OPERATIONS.items() if words.lower() == plain]
        if not matching:
            self.fail(f"{value!r} is not an operation: {', '.join(acls.OPERATIONS)}", param, ctx)
        return matching[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRules:
    """What the options name; nothing is everything."""

    resources: Sequence[Resource]
    pattern: ResourcePatternType | None
    principals: Mapping[str, AclPermissionType | None]  # None where only the user is named
    operations: Sequence[AclOperation]
    host: str | None

    def matches(self, acl: AclBinding) -> bool:
        """Whether it is one of those that are named. Of a resource: only those of this very name."""
        return self.matches_others(acl) and (not self.resources or Resource(kind=acl.restype, name=acl.name) in self.resources)

    def concerns(self, acl: AclBinding) -> bool:
        """The same, and those that name the resource by a prefix, or every one, or allow a range of its offsets."""
        return self.matches(acl) or (
            self.matches_others(acl)
            and any(resource.is_named_by(acl) or resource.has_range_of(acl) for resource in self.resources)
        )

    def matches_others(self, acl: AclBinding) -> bool:
        return (
            (not self.principals or self.principals.get(acl.principal, AclPermissionType.ANY) in (None, acl.permission_type))
            and self.pattern in (None, acl.resource_pattern_type)
            and (not self.operations or acl.operation in self.operations)
            and self.host in (None, acl.host)
        )


def of_rules(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name resources, principals, operations and a host; the command gets `chosen`."""

    @functools.wraps(function)
    def command(
        *words: Any,
        topic: Sequence[str],
        group: Sequence[str],
        cluster: bool,
        transactional_id: Sequence[str],
        pattern: str | None,
        user: Sequence[str],
        allow_principal: Sequence[str],
        deny_principal: Sequence[str],
        operations: Sequence[AclOperation],
        host: str | None,
        **others: Any,
    ) -> Any:
        names = {
            "topic": topic,
            "group": group,
            "cluster": [CLUSTER_NAME] if cluster else [],
            "transactional-id": transactional_id,
        }
        chosen = ChosenRules(
            resources=[checked(kind, name, operations) for kind, of_kind in names.items() for name in of_kind],
            pattern=PATTERNS[pattern] if pattern else None,
            principals={
                **{f"User:{name}": None for name in user},
                **dict.fromkeys(map(principal, allow_principal), AclPermissionType.ALLOW),
                **dict.fromkeys(map(principal, deny_principal), AclPermissionType.DENY),
            },
            operations=operations,
            host=host,
        )
        return function(*words, chosen=chosen, **others)

    for decorate in reversed(RULE_OPTIONS):
        command = decorate(command)
    return command


RULE_OPTIONS: Sequence[Callable[..., Any]] = (
    click.argument("operations", nargs=-1, type=Operation(), metavar="[OPERATION]..."),
    click.option("--topic", multiple=True, metavar="NAME", shell_complete=options.complete_topics, help="A topic; * is each."),
    click.option("--group", multiple=True, metavar="NAME", shell_complete=options.complete_groups, help="A group; * is each."),
    click.option("--cluster", is_flag=True, help="The cluster itself."),
    click.option("--transactional-id", multiple=True, metavar="NAME", help="Of producers with transactions."),
    click.option(
        "--resource-pattern-type",
        "pattern",
        type=click.Choice(list(PATTERNS)),
        help="Whether a name is all of it, or its beginning.",
    ),
    click.option("--user", multiple=True, metavar="NAME", help="Short for --allow-principal User:NAME; may be repeated."),
    click.option("--allow-principal", multiple=True, metavar="TYPE:NAME", help="Whom to allow it; User:* is everybody."),
    click.option("--deny-principal", multiple=True, metavar="TYPE:NAME", help="Whom to deny it, whatever else allows it."),
    click.option("--host", metavar="ADDRESS", help="From where; * is everywhere."),
)


def principal(text: str) -> str:
    if ":" not in text:
        raise click.BadParameter(f"{text!r} has no type: write User:{text}, or --user {text}")
    return text


def checked(kind: str, name: str, operations: Iterable[AclOperation]) -> Resource:
    """UsageError where the name or an operation cannot be of this kind: the broker would keep it, and it would never match."""
    if name != ANY_NAME and ANY_NAME in name and kind != "transactional-id":
        beginning = name.partition(ANY_NAME)[0]
        meant = f"--{kind} {beginning} --resource-pattern-type prefixed" if beginning else f"--{kind} '{ANY_NAME}'"
        raise click.UsageError(f"no {kind} is named {name}: {meant} means all whose names begin so")
    has = (*OPERATIONS[kind], "All")
    if foreign := [word for operation in operations if (word := acls.operation_words(operation)) not in has]:
        raise click.UsageError(f"{', '.join(foreign)} is nothing that can be done to a {kind}: {', '.join(has)}")
    return Resource(kind=acls.KINDS[kind], name=name)


@acl_command.command("ls")
@of_rules
@options.with_broker
@options.json_option
def list_acls(chosen: ChosenRules, config: Mapping[str, Any], as_json: bool) -> None:
    """List the ACLs, or those that the options name; of a topic also those by a prefix of its name or for every topic."""
    show([acl for acl in Acls(Client.for_question(config)).matching() if chosen.concerns(acl)], as_json)


@acl_command.command("add")
@of_rules
@options.with_broker
def add(chosen: ChosenRules, config: Mapping[str, Any]) -> None:
    """Allow, or deny, OPERATIONs: read, write, describe ... What is there already stays.

    logbus acl add --user ann --topic web. --resource-pattern-type prefixed read
    """
    missing = {
        "what to do (read, write ...)": chosen.operations,
        "whom (--user)": chosen.principals,
        "a resource": chosen.resources,
    }
    if lacking := [what for what, given in missing.items() if not given]:
        raise click.UsageError(f"name {', '.join(lacking)}: logbus acl add --user ann --topic web read")
    rules = [
        AclBinding(
            resource.kind,
            resource.name,
            chosen.pattern or ResourcePatternType.LITERAL,
            name,
            chosen.host or ANY_NAME,
            operation,
            permission or AclPermissionType.ALLOW,
        )
        for resource in chosen.resources
        for name, permission in chosen.principals.items()
        for operation in chosen.operations
    ]
    Acls(Client.for_question(config)).add(rules)
    output.echo(*(f"added: {acls.as_text(rule)}" for rule in rules))


@acl_command.command("rm")
@of_rules
@options.execute_option
@options.with_broker
def remove(chosen: ChosenRules, is_executed: bool, config: Mapping[str, Any]) -> None:
    """Remove the ACLs that the options name, as they are listed. A dry run unless --execute."""
    if not (chosen.resources or chosen.principals):
        raise click.UsageError("name a resource or a user: logbus acl rm --user ann --topic web")
    rules = Acls(Client.for_question(config))
    going = [acl for acl in rules.matching() if chosen.matches(acl)]
    if is_executed:
        rules.delete(going)
    output.echo(*(f"{'removed' if is_executed else 'would be removed'}: {acls.as_text(acl)}" for acl in going))
    if not going:
        output.echo_err("no ACL is named so: `logbus acl ls` lists those there are")
    elif not is_executed:
        output.echo_err(f"dry run: nothing was removed; --execute removes {many(len(going), 'ACL')}")


@acl_command.command("explain")
@of_rules
@options.with_broker
@options.json_option
def explain(chosen: ChosenRules, config: Mapping[str, Any], as_json: bool) -> None:
    """Say whether a user may do OPERATION, which ACL decides, and what would change that.

    logbus acl explain --user ann --topic web read
    """
    if [len(chosen.resources), len(chosen.principals), len(chosen.operations)] != [1, 1, 1]:
        raise click.UsageError("name one user, one resource and one operation: logbus acl explain --user ann --topic web read")
    (resource,), (name,), (operation,) = chosen.resources, chosen.principals, chosen.operations
    rules = Acls(Client.for_question(config))
    settings = rules.settings()
    decision = acls.decide(rules.matching(), name, chosen.host or ANY_NAME, operation, resource, settings)
    if as_json:
        output.show_json({"allowed": decision.is_allowed, "acl": decision.acl and row(decision.acl), "reason": decision.reason})
        return
    may = "may" if decision.is_allowed else "may not"
    output.echo(f"{name} {may} {operation.name} {subject(resource)}: {decision.reason}")
    if not decision.is_allowed:
        needed = decision.acl or acls.allowing(name, operation, resource)
        output.echo_err(f"to allow it: logbus acl {'add' if decision.acl is None else 'rm'} {words_for(needed)}")
        if settings.super_users is None:
            output.echo_err(f"note: this broker does not show its {acls.SUPER_USERS}, who may do everything")


def subject(resource: Resource) -> str:
    return "the cluster" if resource.name == CLUSTER_NAME else f"{kind_words(resource)} {resource.name}"


def kind_words(resource: Resource) -> str:
    return next(name for name, kind in acls.KINDS.items() if kind is resource.kind)


def words_for(acl: AclBinding) -> str:
    """The options that name this ACL and no other."""
    allows, kind = acl.permission_type is AclPermissionType.ALLOW, acls.kind_of(acl)
    return " ".join(
        [
            f"--{'allow' if allows else 'deny'}-principal {shlex.quote(acl.principal)}",
            "--cluster" if kind == "cluster" else f"--{kind} {shlex.quote(acl.name)}",
            *(["--resource-pattern-type prefixed"] if acl.resource_pattern_type is ResourcePatternType.PREFIXED else []),
            *([f"--host {acl.host}"] if acl.host != ANY_NAME else []),
            acls.operation_words(acl.operation),
            *([] if allows else ["--execute"]),
        ]
    )


def row(acl: AclBinding) -> dict[str, str]:
    """As JSON-ready values, in the words of kafka-acls."""
    values = (
        acl.permission_type.name.title(),
        acl.principal,
        acl.host,
        acls.operation_words(acl.operation),
        acls.kind_of(acl),
        acl.name,
        acl.resource_pattern_type.name.lower(),
    )
    return dict(zip(COLUMNS, values, strict=True))


def show(rules: Sequence[AclBinding], as_json: bool) -> None:
    rows = [row(acl) for acl in rules]
    if as_json:
        output.show_json(rows)
        return
    table = output.Table(*COLUMNS)
    for cells in rows:
        table.add_row(*cells.values())
    output.show(table)
