"""Any well-formed request of any API and version gets an answer that another implementation (kio) reads, or a closed connection;
never an exception, and never an answer in a version that was not requested.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from logbus_broker.api.handler import Pending
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.settings import topic_fields

from tests.support.engine import Harness, batch
from tests.support.examples import examples
from tests.support.group_client import Client
from tests.support.kio_messages import read_response, requests, written
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer

EXAMPLES = 6
OFFERED = [
    pytest.param(int(key), version, id=f"{ApiKey(key).name}-v{version}")
    for key, api in APIS.items()
    for version in range(api.first, api.last + 1)
]


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_any_request_is_answered_in_its_own_version(tmp_path: Path, api_key: int, version: int) -> None:
    broker = Harness(tmp_path, partitions_max=100)
    broker.create("clicks")
    broker.produce(batch(b"a", b"b"))
    broker.flush()

    @settings(max_examples=examples(EXAMPLES), suppress_health_check=[HealthCheck.too_slow])
    @given(requests(api_key, version))
    def check(message: Any) -> None:
        try:
            answer = broker.dispatch(ApiKey(api_key), version, bytearray(written(message)))
        except ProtocolError:
            return
        broker.settle()
        if isinstance(answer, Pending) and (answer.parts is None or answer.silent):
            return
        read_response(api_key, version, broker.bytes_of(answer))

    check()
    broker.close()


LONG = 32_767  # bytes of a string in versions that are not flexible
LONGER = 40_000  # in versions that are
EXTREME_MEMBERS: dict[str, dict[str, Any]] = {
    "sensible": {},
    "instance ids": {"group_instance_id": "i" * 249},
    "long instance ids": {"group_instance_id": "i" * LONG},
    "metadata": {"metadata": b"m" * 70_000},
    "protocol names": {"name": "p" * LONG},
    "longer protocol names": {"name": "p" * LONGER},
    "protocol types": {"protocol_type": "t" * LONG},
    "longer protocol types": {"protocol_type": "t" * LONGER},
    "group ids": {"group_id": "g" * LONG},
    "longer group ids": {"group_id": "g" * LONGER},
}


@pytest.mark.parametrize("extreme", EXTREME_MEMBERS)
def test_members_of_one_group_that_speak_different_versions_are_answered(tmp_path: Path, extreme: str) -> None:
    """Whatever one member sends, in its version, the other one can read in its own."""
    client = Client(Harness(tmp_path, group_initial_rebalance_delay_ms=0))
    join, sync = APIS[ApiKey.JOIN_GROUP], APIS[ApiKey.SYNC_GROUP]
    protocol = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    for versions in itertools.product(range(join.first, join.last + 1), repeat=2):
        client.group = f"{versions}"
        waiting = []
        for number, version in enumerate(versions):
            # In older versions a string is as long as its encoding allows.
            changes = {
                name: value if version >= join.flexible_from or isinstance(value, bytes) else value[:LONG]
                for name, value in EXTREME_MEMBERS[extreme].items()
            }
            row = {"name": changes.pop("name", "range"), "metadata": changes.pop("metadata", b"")}
            if instance_id := changes.pop("group_instance_id", None):
                changes["instance_id"] = f"{number}{instance_id[1:]}"
            try:
                answer = client.join(version=version, protocols=[protocol(**row)], **changes)
                if not isinstance(answer, Pending) and answer.error_code == 79:  # MEMBER_ID_REQUIRED
                    answer = client.join(answer.member_id, version=version, protocols=[protocol(**row)], **changes)
            except ProtocolError:
                continue
            waiting.append((version, answer))
        client.harness.clock.advance_ms(60_000)  # a leader that does not join again is put out
        client.harness.settle()
        for version, answer in waiting:
            joined = client.read(answer, ApiKey.JOIN_GROUP, version) if isinstance(answer, Pending) else answer
            if not joined.error_code:
                client.sync(joined, version=min(version, sync.last), assignment=b"a" * 70_000)
        if extreme == "sensible":
            assert len(waiting) == 2
            assert joined.error_code == 0
    client.harness.close()


def test_topics_with_extreme_settings_take_records_and_give_them_back(tmp_path: Path) -> None:
    """Every setting of a topic at its smallest and largest value that is accepted."""
    broker, created = Harness(tmp_path, partitions_max=1_000), 0
    for setting, value in itertools.product(topic_fields(), ("-1", "0", "1", "14", "2147483647", "9223372036854775807")):
        name = f"{setting}.{value}"
        if broker.create(name, **{setting: value}).error_code:
            continue
        created += 1
        for _ in range(3):
            answer = broker.bytes_of(broker.produce(batch(b"a" * 300), name))
            assert produce_answer(answer)[name, 0].error_code in (0, 10, 32), name  # too large; too old or too new
        broker.flush()
        answer = broker.bytes_of(broker.dispatch(ApiKey.FETCH, 12, bytes(fetch_body(Wanted(topic=name)))))
        assert fetch_answer(answer).responses[0].partitions[0].error_code in (0, 1), name
    assert created > 20
    broker.close()
