"""Whatever ACLs there are, the index decides as the rules do that Kafka's documentation states, read one after the other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from logbus_broker.security.acls import AclFilter, AclIndex
from logbus_broker.security.state import Acl, AclOperation, AclPermission, AclResourceType, PatternType

from tests.support.examples import examples

NAMES = ("a", "ab", "abc", "b", "*")
HOSTS = ("10.0.0.1", "10.0.0.2")
USERS = ("User:ann", "User:bob")
OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)
KINDS = (AclResourceType.TOPIC, AclResourceType.GROUP)
ACL = st.builds(
    Acl,
    resource_type=st.sampled_from(KINDS),
    pattern_type=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    resource_name=st.sampled_from(NAMES),
    principal=st.sampled_from((*USERS, "User:*")),
    host=st.sampled_from((*HOSTS, "*")),
    operation=st.sampled_from((*OPERATIONS, AclOperation.ALL)),
    permission=st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
)
ACLS = st.frozensets(ACL, max_size=8)
WHO = st.tuples(st.sampled_from(USERS), st.sampled_from(HOSTS), st.sampled_from(OPERATIONS), st.sampled_from(KINDS))
IMPLIED = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


TRIED = ("a", "ab", "abc", "b", "az", "abz", "abcz", "bz", "z", "*z")


def names(acl: Acl, kind: AclResourceType, name: str) -> bool:
    if acl.resource_type is not kind:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def is_allowed(acls: Collection[Acl], who: tuple[str, str, AclOperation, AclResourceType], name: str, by_default: bool) -> bool:
    principal, host, operation, kind = who
    naming = [acl for acl in acls if names(acl, kind, name)]
    mine = [acl for acl in naming if acl.principal in (principal, "User:*") and acl.host in (host, "*")]
    denied = {acl.operation for acl in mine if acl.permission is AclPermission.DENY}
    allowed = {acl.operation for acl in mine if acl.permission is AclPermission.ALLOW}
    if denied & {operation, AclOperation.ALL}:
        return False
    if allowed & {operation, AclOperation.ALL, *IMPLIED.get(operation, ())}:
        return True
    return by_default and not naming


@settings(max_examples=examples(500))
@given(ACLS, WHO, st.sampled_from((*NAMES[:-1], "abcd", "c")), st.booleans())
def test_a_decision_is_that_of_the_rules(
    acls: frozenset[Acl], who: tuple[str, str, AclOperation, AclResourceType], name: str, by_default: bool
) -> None:
    index = AclIndex(acls, super_users=frozenset({"User:root"}), allows_if_no_acl_found=by_default)
    verdict = index.decide(*who, name)
    assert verdict.is_allowed == is_allowed(acls, who, name, by_default)
    assert verdict.acl is None or verdict.acl in acls
    assert index.decide(*who, name, needs_acl=True).is_allowed == is_allowed(acls, who, name, by_default=False)
    assert index.decide("User:root", *who[1:], name).is_allowed


@settings(max_examples=examples(500))
@given(ACLS, WHO)
def test_what_is_allowed_on_any_resource_is_allowed_on_one_of_some_name(
    acls: frozenset[Acl], who: tuple[str, str, AclOperation, AclResourceType]
) -> None:
    """Every name that patterns can tell apart is tried. Only what is allowed by itself counts, as in Kafka, not what is implied."""
    literal = frozenset(acl for acl in acls if acl.operation in (who[2], AclOperation.ALL))
    assert AclIndex(acls).allows_on_any(*who) <= any(is_allowed(acls, who, name, by_default=False) for name in TRIED)
    if not any(acl.permission is AclPermission.DENY for acl in acls):
        assert AclIndex(acls).allows_on_any(*who) >= any(is_allowed(literal, who, name, by_default=False) for name in TRIED)


@settings(max_examples=examples(200))
@given(ACLS, st.sampled_from(KINDS), st.sampled_from(NAMES[:-1]))
def test_a_filter_by_match_finds_what_names_the_resource(acls: frozenset[Acl], kind: AclResourceType, name: str) -> None:
    wanted = AclFilter(kind, name, PatternType.MATCH, None, None, AclOperation.ANY, AclPermission.ANY)
    found = {acl for acl in acls if wanted.matches(acl)}
    assert found == {acl for acl in acls if names(acl, kind, name)} == set(AclIndex(acls).naming(kind, name))


@settings(max_examples=examples(500))
@given(ACLS, ACL)
def test_what_a_user_may_give_to_one_of_its_own_it_may_do_itself(acls: frozenset[Acl], drawn: Acl) -> None:
    """Whoever it is that gains by the ACL gains nothing that the giver lacks, at any host and for any name."""
    given_on = replace(drawn, principal="User:ann/x", permission=AclPermission.ALLOW)
    if AclIndex(acls).covers("User:ann", given_on):
        for host in (*HOSTS, "10.0.0.9"):
            for operation in (*OPERATIONS, AclOperation.WRITE, AclOperation.DELETE):
                for name in (*NAMES[:-1], *TRIED):
                    asked = (host, operation, drawn.resource_type)
                    if is_allowed({given_on}, ("User:ann/x", *asked), name, by_default=False):
                        assert is_allowed(acls, ("User:ann", *asked), name, by_default=False)
    owner = replace(given_on, principal="User:ann")
    assert AclIndex({owner}).covers("User:ann", given_on), "exactly what it has"
    assert not AclIndex({owner}).covers("User:bob", given_on)
