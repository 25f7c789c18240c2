"""`logbus acl`: who may do what on a cluster, in the words of kafka-acls, and why; on our broker and on any other Kafka."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType

from logbus.cli import completion, options, output
from logbus.formatting import many
from logbus.kafka import acls, rights
from logbus.kafka.acls import ANY_NAME, CLUSTER_NAME, Acls, Resource
from logbus.kafka.client import Client

PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefixed": ResourcePatternType.PREFIXED}
COLUMNS = ("permission", "principal", "host", "operation", "resource", "name", "pattern")
OPERATIONS: Mapping[str, Sequence[str]] = {
    **{kind.value: operations for kind, operations in rights.OPERATIONS.items()},
    "cluster": (*rights.OPERATIONS[rights.ResourceKind.CLUSTER], "ClusterAction"),
    "transactional-id": ("Describe", "Write"),
}


@click.group("acl")
def command() -> None:
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
    click.option("--topic", multiple=True, metavar="NAME", shell_complete=completion.complete_topics, help="A topic; * is each."),
    click.option("--group", multiple=True, metavar="NAME", shell_complete=completion.complete_groups, help="A group; * is each."),
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


@command.command("ls")
@of_rules
@options.with_broker
@options.json_option
def list_acls(chosen: ChosenRules, config: Mapping[str, Any], as_json: bool) -> None:
    """List the ACLs, or those that the options name; of a topic also those by a prefix of its name or for every topic."""
    show([acl for acl in Acls(Client.for_question(config)).matching() if chosen.concerns(acl)], as_json)


@command.command("add")
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


@command.command("rm")
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


@command.command("explain")
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
