"""Credentials, ACLs and quotas survive a restart, in a file that only its owner reads and that holds no password.

In a cluster what one broker has acknowledged all have, whatever answers are lost and whoever is the controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from logbus_broker.api.cluster_metadata import ClusterSecurity
from logbus_broker.cluster import security_store
from logbus_broker.cluster.metadata_image import SecurityChange
from logbus_broker.cluster.security_store import Edit, LocalSecurity
from logbus_broker.cluster.store import Set, commit
from logbus_broker.errors import BrokerError, InvalidRequest, RequestTimedOut, StartupError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.background_tasks import Until
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.security.state import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ScramCredential,
    ScramMechanism,
    SecurityState,
)

from tests.sim.coordinated import Controlled, Coordinated, World

STATE = SecurityState(
    credentials={
        ("ann", ScramMechanism.SCRAM_SHA_512): ScramCredential(
            salt=b"\x00salt", iterations=4096, stored_key=b"stored\xff", server_key=b"server"
        )
    },
    acls=frozenset(
        {
            Acl(
                resource_type=AclResourceType.TOPIC,
                pattern_type=PatternType.PREFIXED,
                resource_name="web.",
                principal="User:ann",
                host="*",
                operation=AclOperation.READ,
                permission=AclPermission.ALLOW,
            )
        }
    ),
    quotas={frozenset({("user", "ann"), ("client-id", None)}): {"producer_byte_rate": 1024.0}},
    nobody_key=b"\x00key",
)


@contextmanager
def opened(path: Path) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(path, broker_id=0, filesystem=FileSystem(), new_id=uuid.uuid4)
    try:
        yield directory
    finally:
        directory.close(clean=True)


def test_what_is_stored_is_there_after_a_restart_and_for_its_owner_only(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        store = LocalSecurity(directory)
        assert store.state == SecurityState()
        for write in store.change(lambda _: STATE):
            assert store.state == SecurityState(), "in effect only once it is on disk"
            write()
        assert store.state == STATE
        assert not list(store.change(lambda state: state)), "nothing changed, nothing is written"
    with opened(tmp_path) as directory:
        assert LocalSecurity(directory).state == STATE
    assert (tmp_path / "security.json").stat().st_mode & 0o077 == 0


def test_a_file_that_no_broker_has_written_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        directory.write_json_atomic("security.json", {"acls": [{"resource_type": "TABLE"}], "credentials": [], "quotas": []})
        with pytest.raises(StartupError, match=r"security\.json is malformed"):
            LocalSecurity(directory)


class Change:
    """The steps of a change, run by ZooKeeper's answers."""

    def __init__(self, security: ClusterSecurity, edit: Edit) -> None:
        self.is_over = False
        self.error: BrokerError | None = None
        self._steps = security.change(edit)
        self._go_on(None, None)

    def _go_on(self, result: Any, error: BaseException | None) -> None:
        try:
            step = self._steps.send(result) if error is None else self._steps.throw(error)
        except StopIteration:
            self.is_over = True
        except BrokerError as refused:
            self.is_over, self.error = True, refused
        else:
            assert isinstance(step, Until)
            step.begin(self._go_on)


def changed(world: World, security: ClusterSecurity, edit: Edit) -> None:
    change = Change(security, edit)
    world.timeline.run_until(lambda: change.is_over, 60)
    if change.error is not None:
        raise change.error


def allowing(name: str, principal: str = "User:ann") -> Edit:
    (rule,) = STATE.acls
    return lambda state: replace(state, acls=state.acls | {replace(rule, resource_name=name, principal=principal)})


def test_what_one_broker_stores_all_have_and_what_has_not_changed_is_the_same_object(world: World) -> None:
    brokers = [world.started(broker_id) for broker_id in (1, 2)]
    first, second = (ClusterSecurity(broker.member) for broker in brokers)
    changed(world, first, lambda _: STATE)
    assert first.state == STATE, "in effect once it is acknowledged"
    world.run(1)
    state = second.state
    assert state == STATE
    calls: list[Any] = []
    second.on_change = lambda: calls.append("changed")
    changed(world, first, lambda state: replace(state, quotas={}))
    world.run(1)
    assert calls == ["changed"], "also by another broker"
    changed(world, first, lambda _: STATE)
    world.run(1)
    state, calls = second.state, []
    changed(world, second, lambda before: calls.append(before) or before)  # type: ignore[func-returns-value]
    world.zookeeper.expire(brokers[1].store.session_id)
    world.run(2)
    assert calls == [STATE], "nothing changed, nothing is written"
    assert second.state is state, "read anew, and still the same"
    changed(world, second, lambda _: SecurityState())
    world.run(1)
    assert first.state == SecurityState()
    assert not any(world.zookeeper.names(parent) for parent in security_store.PARENTS)
    assert brokers[0].image == world.truth(brokers[0].image.position)


def test_a_change_that_no_transaction_can_hold_takes_several_and_a_node_that_none_can_hold_is_refused(
    world: World, broker: Coordinated
) -> None:
    security = ClusterSecurity(broker.member)
    (rule,) = STATE.acls
    rules = frozenset(replace(rule, resource_name=f"{number:0249}") for number in range(2_000))
    changed(world, security, lambda state: replace(state, acls=rules))
    assert security.state.acls == rules
    assert len([news for delta in broker.news for news in delta.changes if isinstance(news, SecurityChange)]) > 2
    one_topics = frozenset(replace(rule, principal=f"User:{number}") for number in range(4_000))
    with pytest.raises(InvalidRequest, match=r"/kafka-acl-extended/prefixed/Topic/web\. would hold more than a znode can"):
        changed(world, security, lambda state: replace(state, acls=one_topics))
    assert security.state.acls == rules


def test_an_acl_that_cannot_be_read_does_not_vanish(world: World, broker: Coordinated, caplog: pytest.LogCaptureFixture) -> None:
    security = ClusterSecurity(broker.member)
    changed(world, security, lambda _: STATE)
    path = "/kafka-acl-extended/prefixed/Topic/web."
    world.answered(broker, commit([Set(path=path, data=b"?", version=-1)]))
    world.zookeeper.expire(broker.store.session_id)
    world.run(5)
    assert security.state == STATE
    assert f"restore or delete {path}" in caplog.text


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_change_whose_answer_is_lost_is_made_once(world: World, broker: Coordinated, is_committed: bool) -> None:
    security = ClusterSecurity(broker.member)

    def remove(state: SecurityState) -> SecurityState:
        if not state.credentials:
            raise InvalidRequest("no such credential")
        return replace(state, credentials={})

    changed(world, security, lambda _: STATE)
    broker.store.lose_answer(is_committed=is_committed)
    changed(world, security, remove)
    assert security.state == replace(STATE, credentials={})


def test_what_is_acknowledged_is_seen_by_all_and_survives_lost_answers_and_new_controllers() -> None:
    for seed in range(5):
        world, random = World(seed), Random(seed)
        brokers = [world.joined(Controlled(world, broker_id)) for broker_id in (1, 2, 3)]
        stores = [ClusterSecurity(broker.member) for broker in brokers]
        world.zookeeper.answer_loss = 0.1
        changes = {}
        for number in range(30):
            name = f"{number % 20}"  # of some resources several rules, from several brokers at once
            principal = f"User:{number}"
            changes[name, principal] = Change(random.choice(stores), allowing(name, principal))
            if random.random() < 0.2:
                controller = brokers[0].image.controller.broker_id
                if controller in (1, 2, 3):
                    world.zookeeper.expire(brokers[controller - 1].store.session_id)
            world.run(random.choice((0, 0, 0.01, 0.5)))
        world.run(60)
        world.zookeeper.answer_loss = 0.0
        world.run(20)
        assert brokers[0].image.controller.epoch > 1
        assert len([change for change in changes.values() if change.error is None]) > 10
        known = {(acl.resource_name, acl.principal) for acl in stores[0].state.acls}
        for key, change in changes.items():
            assert change.is_over
            assert key in known or isinstance(change.error, RequestTimedOut)
        for broker, store in zip(brokers, stores, strict=True):
            assert store.state == stores[0].state
            assert broker.image == world.truth(broker.image.position)
