"""Which ACL decides, and why. tests/contract/test_secured_kafka.py compares with a Kafka's own decisions."""

from __future__ import annotations

from random import Random

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from logbus.kafka.acls import AuthorizerSettings, Resource, decide
from logbus_broker.security import state
from logbus_broker.security.acls import AclIndex


def rule(text: str) -> AclBinding:
    """`ALLOW READ User:ann from * on PREFIXED TOPIC web.`"""
    permission, operation, principal, _, host, _, pattern, kind, name = text.split()
    return AclBinding(
        ResourceType[kind],
        name,
        ResourcePatternType[pattern],
        principal,
        host,
        AclOperation[operation],
        AclPermissionType[permission],
    )


READ_ALL, WRITE_ALL = "ALLOW READ User:ann from * on LITERAL TOPIC *", "ALLOW WRITE User:* from * on LITERAL TOPIC *"
DENY_WEB, DENY_ALL = "DENY READ User:ann from * on PREFIXED TOPIC web", "DENY ALL User:ann from * on LITERAL TOPIC web.a"
READ_RANGE = "ALLOW READ User:ann from * on LITERAL TOPIC web.a:0:5-9"
FROM_TEN = "ALLOW READ User:ann from 10.0.0.1 on LITERAL TOPIC web.a"


@pytest.mark.parametrize(
    ("rules", "host", "operation", "is_allowed", "reason"),
    [
        ([], "*", "READ", False, "no ACL allows it; 'ALLOW READ to User:ann from * on LITERAL TOPIC web.a' would"),
        ([READ_ALL], "*", "READ", True, "the ACL 'ALLOW READ to User:ann from * on LITERAL TOPIC *' decides"),
        ([READ_ALL], "*", "DESCRIBE", True, "the ACL 'ALLOW READ to User:ann from * on LITERAL TOPIC *' decides"),
        ([READ_ALL], "*", "DESCRIBE_CONFIGS", False, "no ACL allows it"),
        ([READ_ALL], "*", "WRITE", False, "no ACL allows it"),
        ([WRITE_ALL], "*", "WRITE", True, "the ACL 'ALLOW WRITE to User:* from * on LITERAL TOPIC *' decides"),
        ([READ_ALL, DENY_WEB], "*", "READ", False, "the ACL 'DENY READ to User:ann from * on PREFIXED TOPIC web' decides, and would have to be deleted"),
        ([READ_ALL, DENY_WEB], "*", "DESCRIBE", True, "the ACL 'ALLOW READ"),  # only what allows implies
        ([WRITE_ALL, DENY_ALL], "*", "WRITE", False, "the ACL 'DENY ALL to User:ann"),
        ([FROM_TEN], "10.0.0.1", "READ", True, "the ACL 'ALLOW READ to User:ann from 10.0.0.1"),
        ([FROM_TEN], "10.0.0.2", "READ", False, "no ACL allows it"),
        ([FROM_TEN.replace("ann", "bob")], "*", "READ", False, "no ACL allows it"),
        ([READ_ALL.replace("TOPIC", "GROUP")], "*", "READ", False, "no ACL allows it"),
        ([READ_RANGE], "*", "READ", False, "its ACLs allow only web.a:0:5-9"),
        ([READ_RANGE], "*", "DESCRIBE", True, "the ACL 'ALLOW READ to User:ann from * on LITERAL TOPIC web.a:0:5-9' decides"),
        ([READ_RANGE.replace("web.a", "web.b")], "*", "DESCRIBE", False, "no ACL allows it"),
    ],
)  # fmt: skip
def test_the_rule_that_decides_is_named(rules: list[str], host: str, operation: str, is_allowed: bool, reason: str) -> None:
    web = Resource(kind=ResourceType.TOPIC, name="web.a")
    found = decide(map(rule, rules), "User:ann", host, AclOperation[operation], web, AuthorizerSettings())
    assert (found.is_allowed, found.reason.startswith(reason)) == (is_allowed, True), found.reason


@pytest.mark.parametrize(
    ("rules", "settings", "is_allowed", "reason"),
    [
        ([DENY_ALL], AuthorizerSettings(super_users=frozenset({"User:ann"})), True, "one of super.users"),
        ([], AuthorizerSettings(allows_everyone=True), True, "it has no ACLs, and allow.everyone.if.no.acl.found is set"),
        ([READ_ALL.replace("ann", "bob")], AuthorizerSettings(allows_everyone=True), False, "no ACL allows it"),
    ],
)
def test_settings_decide_beside_the_rules(rules: list[str], settings: AuthorizerSettings, is_allowed: bool, reason: str) -> None:
    web = Resource(kind=ResourceType.TOPIC, name="web.a")
    found = decide(map(rule, rules), "User:ann", "*", AclOperation.READ, web, settings)
    assert (found.is_allowed, found.reason.startswith(reason)) == (is_allowed, True), found.reason


def of_the_broker(text: str) -> state.Acl:
    permission, operation, principal, _, host, _, pattern, kind, name = text.split()
    row = {"resource_type": kind, "pattern_type": pattern, "resource_name": name, "principal": principal, "host": host}
    return state.decode_acl({**row, "operation": operation, "permission": permission})


def test_our_broker_decides_alike_and_gives_the_same_reason() -> None:
    random = Random(34)
    patterns = (
        *("LITERAL TOPIC web.a", "LITERAL TOPIC *", "PREFIXED TOPIC web", "PREFIXED TOPIC web.a", "LITERAL GROUP web.a"),
        *(f"LITERAL TOPIC web.{name}" for name in ("a:0:5-9", "a:0:9-12", "a:0:12-13", "a:2:5-9", "b:0:5-9")),
    )
    choices = (
        ("ALLOW", "DENY"),
        ("READ", "DESCRIBE", "ALL", "ALTER_CONFIGS"),
        ("User:ann", "User:*", "User:bob"),
        ("*", "10.0.0.1"),
        patterns,
    )
    web, outcomes = Resource(kind=ResourceType.TOPIC, name="web.a"), set()
    for _ in range(400):
        rules = {"{} {} {} from {} on {}".format(*map(random.choice, choices)) for _ in range(random.randrange(9))}
        supers, everyone = frozenset(random.choice([[], [], ["User:ann"]])), random.random() < 0.3
        index = AclIndex(map(of_the_broker, rules), super_users=supers, allows_if_no_acl_found=everyone)
        operation, host = random.choice(("READ", "DESCRIBE", "DESCRIBE_CONFIGS")), random.choice(("10.0.0.1", "10.0.0.2"))
        settings = AuthorizerSettings(super_users=supers, allows_everyone=everyone)
        ours = decide(map(rule, rules), "User:ann", host, AclOperation[operation], web, settings)
        asked = (state.AclOperation[operation], state.AclResourceType.TOPIC, "web.a")
        theirs = index.decide("User:ann", host, *asked)
        assert (ours.is_allowed, ours.reason) == (theirs.is_allowed, index.explain(theirs, "User:ann", *asked))
        outcomes.add((ours.is_allowed, ours.acl is None, ours.reason[:3]))
    assert len(outcomes) >= 6
