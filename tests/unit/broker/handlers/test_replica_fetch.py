"""Which requests count as a replica's, and what happens to an answer whose connection is closed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.handlers.replica_fetch import handle_replica_fetch, replica_fetch_of
from broker.handlers.reply import Pending
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.framing import Origin, Request
from broker.protocol.replica_fetch import REPLICA_FETCH_VERSION, ReplicaFetch, encode_replica_fetch, parse_replica_answer


class Scene:
    """A broker whose cluster has seen brokers 1 and 2; its leader only records the fetches it gets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.counters: Any = SimpleNamespace(errors=Counter())
        self.cluster: Any = SimpleNamespace(image=SimpleNamespace(incarnations={1: 0, 2: 3}))

    def fetch(self, *, replica: int = 2, listener: str = "REPLICATION", cluster_id: str | None = "aCluster") -> Any:
        fetch = ReplicaFetch(replica, 3, cluster_id, 500, 1, 1 << 20, 0, 0, [], [])
        body = memoryview(encode_replica_fetch(fetch))
        request = Request(int(ApiKey.FETCH), REPLICA_FETCH_VERSION, 1, None, body, origin=Origin("host", listener))
        parsed = replica_fetch_of(request)
        assert parsed is not None
        config = SimpleNamespace(inter_broker_listener="REPLICATION")
        context = SimpleNamespace(config=config, counters=self.counters, cluster=self.cluster)
        leader = SimpleNamespace(fetch=lambda *asked: self.asked.append(asked))
        return handle_replica_fetch(parsed, request, cast(Any, context), cast(Any, leader))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"listener": "CLIENTS"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"cluster_id": None}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"replica": 9}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_what_comes_from_no_broker_of_the_cluster_is_no_progress(fields: dict[str, Any], code: ErrorCode) -> None:
    scene = Scene()
    answer = parse_replica_answer(memoryview(b"".join(scene.fetch(**fields))))
    assert (answer.error, scene.asked) == (code, [])
    assert scene.counters.errors == {(ApiKey.FETCH, code): 1}


def test_a_replicas_fetch_waits_and_does_not_hold_up_what_is_behind_it() -> None:
    scene = Scene()
    pending = scene.fetch()
    assert isinstance(pending, Pending)
    assert (pending.done, pending.stops_reading) == (False, False)
    (_, origin, answer) = scene.asked[0]
    assert origin == ("host", "REPLICATION")
    answer([b"parts"])
    assert pending.parts == [b"parts"]


def test_an_answer_for_a_connection_that_was_closed_is_dropped() -> None:
    scene = Scene()
    pending = scene.fetch()
    pending.is_cancelled = True
    scene.asked[0][2]([b"parts"])
    assert not pending.done


def test_a_consumers_fetch_is_not_taken_for_a_replicas() -> None:
    request = Request(int(ApiKey.FETCH), REPLICA_FETCH_VERSION - 1, 1, None, memoryview(b""))
    assert replica_fetch_of(request) is None
    assert replica_fetch_of(request._replace(version=REPLICA_FETCH_VERSION, body=memoryview(bytes(80)))) is None
