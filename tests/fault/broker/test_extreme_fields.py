"""Legal but extreme fields in every version of every API, members of one group that use different versions, and batches whose own
numbers are extreme, against one running broker: it may refuse, or close that one connection; it keeps serving all others.

Nothing here is malformed, so nothing here may be a defect, and no traceback may be in the log. At the end the same process is
healthy, and it starts again from whatever all this has left on the disk.
"""

from __future__ import annotations

import base64
import itertools
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from logbus.waiting import PATIENCE_SECONDS, wait_until

from broker.config.settings import topic_fields
from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import response_class
from broker.records.batch import read_header
from broker.records.builder import NewRecord, build_batch
from tests.support.batches import altered
from tests.support.bystanders import is_answered
from tests.support.extreme_fields import COMPACTED, LONGEST, TOPIC, encode, fields_of, header, requests, sensible
from tests.support.kio_messages import read_response
from tests.support.raw_client import Closed, RawClient
from tests.support.sabotaged_broker import SabotagedBroker
from tests.support.scene import DEFECT, wait_until_well
from tests.support.topics import create_topic
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body
from tests.support.workload import BUSY, Workload

INITIAL_DELAY_MS = 3_000  # in which the members of a hundred groups join
ANSWER_SECONDS = 0.05  # a request may rightly wait for long; it gets this much, and is then abandoned
MEMBER_ID_REQUIRED = 79


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SabotagedBroker]:
    settings = {**BUSY, "group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS)}
    with SabotagedBroker(tmp_path_factory.mktemp("extremes") / "broker", settings=settings) as broker:
        create_topic(broker.bootstrap, TOPIC, config={"segment.bytes": "100000"})
        create_topic(
            broker.bootstrap,
            COMPACTED,
            config={"cleanup.policy": "compact", "segment.bytes": "1000", "min.cleanable.dirty.ratio": "0.1"},
        )
        yield broker


@pytest.fixture(scope="module")
def topic_id(ours: SabotagedBroker) -> bytes:
    lines = (ours.data / f"{TOPIC}-0" / "partition.metadata").read_text()
    return base64.urlsafe_b64decode(lines.partition("topic_id: ")[2].strip() + "==")


@pytest.fixture
def bystander(ours: SabotagedBroker) -> Iterator[RawClient]:
    """Connected before it all begins, and answered after it. Also checks that the test left no defect."""
    if not is_reachable(ours):  # another test has ended it, and reports that
        ours.stop()
        ours.start()
    pid, log_bytes = ours.pid, ours.log_bytes
    with RawClient(ours.bootstrap) as client:
        yield client
        assert ours.alive, ours.log_since(log_bytes)[-3_000:]
        assert is_answered(client)
    assert ours.pid == pid
    log = ours.log_since(log_bytes)
    assert DEFECT not in log, log[max(log.index(DEFECT) - 500, 0) :][:3_000]
    assert "Traceback" not in log
    wait_until_well(ours)


def is_reachable(broker: SabotagedBroker) -> bool:
    try:
        with RawClient(broker.bootstrap) as client:
            return is_answered(client)
    except ConnectionError:
        return False


@pytest.mark.parametrize("api_key", [pytest.param(key, id=ApiKey(key).name) for key in APIS])
def test_extreme_fields_end_at_most_their_own_connection(
    ours: SabotagedBroker, bystander: RawClient, topic_id: bytes, api_key: int
) -> None:
    outcomes: Counter[str] = Counter()
    for version in range(APIS[api_key].first, APIS[api_key].last + 1):
        for what, body in requests(api_key, version, topic_id):
            outcome = ask(ours, api_key, version, body)
            outcomes[outcome] += 1
            assert is_answered(bystander), f"version {version}, {what}: {outcome}, and others are not answered any more"
            assert what != "nothing" or outcome != "closed", f"version {version}: what is sensible closes the connection"
    assert outcomes["answered"], outcomes


def ask(broker: SabotagedBroker, api_key: int, version: int, body: bytes, *, client_id: str | None = "tests") -> str:
    """Returns "answered", if another implementation reads it in that version; "closed"; or "waits" for something."""
    with socket.create_connection(("127.0.0.1", broker.port), PATIENCE_SECONDS) as connection:
        frame = header(api_key, version, 7, client_id) + body
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        if not select.select([connection], [], [], ANSWER_SECONDS)[0]:
            return "waits"
        answer = receive(connection)
    if answer is None:
        return "closed"
    assert struct.unpack_from(">i", answer) == (7,)
    is_flexible = version >= APIS[api_key].flexible_from and api_key != ApiKey.API_VERSIONS
    read_response(api_key, version, answer[5 if is_flexible else 4 :])
    return "answered"


def receive(connection: socket.socket) -> bytes | None:
    """The next frame, or None if the connection ends."""
    with connection.makefile("rb") as incoming:
        try:
            head = incoming.read(4)
            answer = incoming.read(int.from_bytes(head)) if len(head) == 4 else b""
        except ConnectionError:
            return None
    return answer or None


@pytest.mark.parametrize(
    "client_id",
    [None, "", "c" * LONGEST, "é" * (LONGEST // 2), "a\nb\0c"],
    ids=["null", "empty", "longest", "wide", "unprintable"],
)
def test_extreme_client_ids(ours: SabotagedBroker, bystander: RawClient, topic_id: bytes, client_id: str | None) -> None:
    for api_key, api in APIS.items():
        for version in {api.first, api.last}:
            body = encode(
                fields := fields_of(api_key, version), sensible(api_key, fields, topic_id), flexible=version >= api.flexible_from
            )
            assert ask(ours, api_key, version, body, client_id=client_id) != "closed", (ApiKey(api_key).name, version)
            assert is_answered(bystander)


# -- groups whose members speak different versions ---------------------------------------------------------------------------------------

EXTREMES: dict[str, dict[str, Any]] = {
    "sensible": {},
    "instance ids": {"group_instance_id": "i" * 249},
    "long instance ids": {"group_instance_id": "i" * LONGEST},
    "longer instance ids": {"group_instance_id": "i" * 40_000},
    "metadata": {"metadata": b"m" * 70_000},
    "client ids": {"client_id": "c" * LONGEST},
    "protocol names": {"name": "p" * LONGEST},
    "longer protocol names": {"name": "p" * 40_000},
    "protocol types": {"protocol_type": "t" * LONGEST},
    "longer protocol types": {"protocol_type": "t" * 40_000},
    "group ids": {"group_id": "g" * (LONGEST - 100)},
    "longer group ids": {"group_id": "g" * 40_000},
}


class Member:
    """One member of one group, which uses one version of JoinGroup and the matching one of SyncGroup."""

    def __init__(self, broker: SabotagedBroker, group: str, number: int, version: int, extreme: dict[str, Any]) -> None:
        self.version = version
        self.sync_version = min(version, APIS[ApiKey.SYNC_GROUP].last)
        self._extreme = {name: f"{value}{number}" if name == "group_instance_id" else value for name, value in extreme.items()}
        if self.version < APIS[ApiKey.JOIN_GROUP].flexible_from:  # as long as its encoding allows
            self._extreme = {name: value[-LONGEST:] if isinstance(value, str) else value for name, value in self._extreme.items()}
        self._group = self._extreme.get("group_id", "")[: LONGEST - 100] + group
        self._timeout_ms = 3_000 if extreme else 60_000  # where all must be in time
        self._client_id = self._extreme.get("client_id", "tests")
        self._connection = socket.create_connection(("127.0.0.1", broker.port), PATIENCE_SECONDS)
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.members: list[str] = []
        self.is_gone = False

    def send_join(self) -> None:
        self._send(ApiKey.JOIN_GROUP, self.version, session_timeout_ms=self._timeout_ms, rebalance_timeout_ms=self._timeout_ms)

    def send_sync(self) -> None:
        rows = [{"member_id": one, "assignment": b"a" * 70_000} for one in self.members]
        self._send(ApiKey.SYNC_GROUP, self.sync_version, assignments=rows)

    def _send(self, api_key: ApiKey, version: int, **values: Any) -> None:
        if self.is_gone:
            return
        fields = fields_of(api_key, version)
        own = {"group_id": self._group, "member_id": self.member_id, "generation_id": self.generation}
        named = {**sensible(api_key, fields, bytes(16)), **own, **values}
        named |= {name: value for name, value in self._extreme.items() if name in named and name != "group_id"}
        if "protocol_name" in named:
            named["protocol_name"] = self._extreme.get("name", "range")
        for protocol in named.get("protocols", ()):
            protocol |= {name: value for name, value in self._extreme.items() if name in protocol}
        body = encode(fields, named, flexible=version >= APIS[api_key].flexible_from)
        frame = header(api_key, version, 7, self._client_id) + body
        try:
            self._connection.sendall(struct.pack(">i", len(frame)) + frame)
        except ConnectionError:
            self.is_gone = True

    def receive(self, api_key: ApiKey, version: int) -> Any:
        """The answer, read by two implementations; None if the connection ended instead."""
        frame = None if self.is_gone else receive(self._connection)
        if frame is None:
            self.is_gone = True
            return None
        raw = frame[5 if version >= APIS[api_key].flexible_from else 4 :]
        read_response(api_key, version, raw)
        return response_class(api_key).decode(raw, version=version)

    def begin(self) -> None:
        """Join; if the broker first assigns a member id, join again with it."""
        self.send_join()
        if self.version >= 4 and not self._has_instance:
            answer = self.receive(ApiKey.JOIN_GROUP, self.version)
            if answer is not None and answer.error_code == MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self.send_join()
            else:
                self.is_gone = True  # refused

    @property
    def _has_instance(self) -> bool:
        return self.version >= 5 and "group_instance_id" in self._extreme

    def joined(self) -> str:
        answer = self.receive(ApiKey.JOIN_GROUP, self.version)
        if answer is None:
            return "closed"
        if answer.error_code:
            self.is_gone = True
            return f"refused with {answer.error_code}"
        self.member_id, self.generation, self.leader = answer.member_id, answer.generation_id, answer.leader
        self.members = [row.member_id for row in answer.members]
        return "joined"

    def synced(self) -> str:
        answer = self.receive(ApiKey.SYNC_GROUP, self.sync_version)
        return "closed" if answer is None else f"refused with {answer.error_code}" if answer.error_code else "synced"

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("extreme", EXTREMES)
def test_members_of_all_pairs_of_versions(ours: SabotagedBroker, bystander: RawClient, extreme: str) -> None:
    """The first generation of each group completes by timeout, the second once every member has joined again."""
    versions = range(APIS[ApiKey.JOIN_GROUP].first, APIS[ApiKey.JOIN_GROUP].last + 1)
    pairs = [
        [
            Member(ours, f"{extreme}-{leader}-{other}", number, version, EXTREMES[extreme])
            for number, version in enumerate((leader, other))
        ]
        for leader, other in itertools.product(versions, versions)
    ]
    members = [member for pair in pairs for member in pair]
    outcomes: Counter[str] = Counter()
    for member in members:
        member.begin()
    outcomes.update(take_turns(members, bystander))
    for pair in pairs:
        for member in sorted(pair, key=lambda member: member.leader != member.member_id):  # a leader that rejoins starts anew
            if not member.is_gone:
                member.send_join()
    outcomes.update(take_turns(members, bystander))
    for member in members:
        member.close()
    assert is_answered(bystander)
    if extreme == "sensible":
        assert set(outcomes) == {"joined", "synced"}, outcomes


def take_turns(members: Sequence[Member], bystander: RawClient) -> Iterator[str]:
    """The answers to all joins, then all syncs, the leaders' last, and their answers."""
    waiting = [member for member in members if not member.is_gone]
    for member in waiting:
        yield member.joined()
    assert is_answered(bystander)
    waiting = [member for member in waiting if not member.is_gone]
    for member in sorted(waiting, key=lambda member: member.leader == member.member_id):
        member.send_sync()
    assert is_answered(bystander)
    for member in waiting:
        yield member.synced()


# -- batches -----------------------------------------------------------------------------------------------------------------------------

INT64 = (-(1 << 63), -1, 0, (1 << 63) - 1)
HEADER_EXTREMES = {
    "base_offset": INT64,
    "base_timestamp": INT64,
    "max_timestamp": INT64,
    "producer_id": INT64,
    "producer_epoch": (-(1 << 15), -1, 0, (1 << 15) - 1),
    "base_sequence": (-(1 << 31), -1, 0, (1 << 31) - 1),
    "last_offset_delta": (-(1 << 31), -1, 0, 1, (1 << 31) - 1),
    "record_count": (-(1 << 31), -1, 0, 1, (1 << 31) - 1),
    "leader_epoch": (-(1 << 31), (1 << 31) - 1),
    "attributes": (-(1 << 15), -1, 8, 16, 32, 64, (1 << 15) - 1),
}


def test_batches_whose_numbers_are_extreme(ours: SabotagedBroker, bystander: RawClient) -> None:
    """Whatever is accepted is compacted, searched and read, including timestamps more than 64 bits apart."""
    far = [
        NewRecord(timestamp=stamp, key=b"%d" % number, value=b"v" * 300)
        for number, stamp in enumerate((0, (1 << 62) - 1, -(1 << 62)))
    ]
    plain = build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=b"k", value=b"v" * 300)])
    names = set(read_header(plain)._fields)
    batches = [build_batch([one]) for one in far] + [build_batch(far)]
    batches += [altered(plain, **{name: value}) for name, values in HEADER_EXTREMES.items() if name in names for value in values]
    batches += [altered(plain, base_timestamp=(1 << 63) - 1, max_timestamp=(1 << 63) - 1)]
    accepted: Counter[str] = Counter()
    for topic in (TOPIC, COMPACTED):
        for batch in batches:
            with RawClient(ours.bootstrap) as client:
                body = bytes(produce_body({(topic, 0): bytes(batch)}))
                try:
                    row = produce_answer(client.request(ApiKey.PRODUCE, 9, body, flexible=True))[topic, 0]
                except Closed:
                    accepted["closed"] += 1
                else:
                    accepted["stored" if not row.error_code else "refused"] += 1
            assert is_answered(bystander)
    assert accepted["stored"]
    assert not accepted["closed"], accepted
    for stamp in INT64:
        with RawClient(ours.bootstrap) as client:
            body = list_offsets(stamp)
            client.request(ApiKey.LIST_OFFSETS, 10, body, flexible=True)
    for _ in range(30):  # so that what was stored is in sealed segments, which are compacted
        with RawClient(ours.bootstrap) as client:
            body = bytes(produce_body({(COMPACTED, 0): bytes(plain)}))
            client.request(ApiKey.PRODUCE, 9, body, flexible=True)
    passes = ours.log_path.read_text().count("compacted up to")
    wait_until(
        lambda: ours.log_path.read_text().count("compacted up to") > passes or "not compacted" in ours.log_path.read_text(),
        what="the compaction",
    )
    with Workload(ours.bootstrap) as reader:
        assert reader.stored(COMPACTED, 0, from_offset=0)[1]


def list_offsets(timestamp: int) -> bytes:
    fields = fields_of(ApiKey.LIST_OFFSETS, 10)
    tree = sensible(ApiKey.LIST_OFFSETS, fields, bytes(16))
    tree["topics"][0]["partitions"][0]["timestamp"] = timestamp
    return encode(fields, tree, flexible=True)


# -- settings ----------------------------------------------------------------------------------------------------------------------------


def test_topics_with_extreme_settings(ours: SabotagedBroker, bystander: RawClient) -> None:
    """Every topic setting, at its smallest and largest accepted value: produced to, read, searched, trimmed, compacted."""
    plain = bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=b"k", value=b"v" * 300)]))
    made = 0
    for setting, value in itertools.product(topic_fields(), ("-1", "0", "1", "14", "2147483647", "9223372036854775807")):
        name = f"set.{made}"
        fields_asked = fields_of(ApiKey.CREATE_TOPICS, 7)
        tree = sensible(ApiKey.CREATE_TOPICS, fields_asked, bytes(16))
        tree["topics"][0] |= {"name": name, "configs": [{"name": setting, "value": value}]}
        with RawClient(ours.bootstrap) as client:
            raw = client.request(ApiKey.CREATE_TOPICS, 7, encode(fields_asked, tree, flexible=True), flexible=True)
            if response_class(ApiKey.CREATE_TOPICS).decode(raw, version=7).topics[0].error_code:
                continue
            made += 1
            for _ in range(3):
                row = produce_answer(client.request(ApiKey.PRODUCE, 9, bytes(produce_body({(name, 0): plain})), flexible=True))[
                    name, 0
                ]
                assert row.error_code in (0, 10, 32), (setting, value, row.error_code)  # too large; too old or too new
            answer = fetch_answer(
                client.request(ApiKey.FETCH, 12, bytes(fetch_body(Wanted(topic=name), wait_ms=50)), flexible=True)
            )
            assert answer.responses[0].partitions[0].error_code in (0, 1), (setting, value)
        assert is_answered(bystander), (setting, value)
    assert made > 20


# -- the end -----------------------------------------------------------------------------------------------------------------------------


def test_it_starts_again_from_all_that(ours: SabotagedBroker) -> None:
    """After a clean stop, and after a crash."""
    for end in (ours.stop, ours.kill9):
        end()
        ours.start()
        wait_until_well(ours)
        with Workload(ours.bootstrap) as workload:
            wait_until(workload.works, what="a round without an error")
