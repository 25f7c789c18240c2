"""Whatever the image can hold survives a round trip through ZooKeeper."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.cluster import security_store, znodes
from logbus_broker.cluster.metadata_image import BrokerNode, LoggedChange, PartitionState, Security, Settings, TopicNode
from logbus_broker.cluster.metadata_log import decode_changes, encode_changes
from logbus_broker.security.state import SecurityState

from tests.support import images


def _with_a_key_more(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "from_a_later_version": [1]}).encode()


@given(images.states)
def test_a_state_is_read_as_it_was_written(state: PartitionState) -> None:
    data = znodes.encode_state(state)
    assert znodes.decode_state(data, state.version) == state
    assert znodes.decode_state(_with_a_key_more(data), state.version) == state


@given(images.topic_nodes)
def test_a_topic_is_read_as_it_was_written(topic: TopicNode) -> None:
    data = znodes.encode_topic(topic)
    assert znodes.decode_topic(topic.name, data, topic.version) == topic
    assert znodes.decode_topic(topic.name, _with_a_key_more(data), topic.version) == topic
    assert znodes.encode_topic(topic.with_states(())) == data


@given(images.broker_nodes)
def test_a_broker_is_read_as_it_was_written(node: BrokerNode) -> None:
    data = znodes.encode_broker(node, 1)
    assert znodes.decode_broker(node.broker_id, data) == node
    assert znodes.decode_broker(node.broker_id, _with_a_key_more(data)) == node


@given(images.settings_values)
def test_settings_are_read_as_they_were_written(settings: Settings) -> None:
    assert znodes.decode_settings(znodes.encode_settings(settings.values), settings.version) == settings


@given(images.security_states, images.security_states)
def test_users_acls_and_quotas_are_read_as_they_were_written(before: SecurityState, after: SecurityState) -> None:
    nodes = {}
    for path, content in security_store.by_znode(after).items():
        assert path.rpartition("/")[0] in security_store.PARENTS
        assert path.rpartition("/")[2] not in ("", ".", "..")
        data = znodes.encode_security(path, content)
        assert znodes.decode_security(path, _with_a_key_more(data)) == content
        nodes[path] = znodes.decode_security(path, data)
    security = Security().after(1, security_store.by_znode(before))
    gone = dict.fromkeys(security.nodes, SecurityState())
    assert security.after(2, {**gone, **nodes}) == Security(version=2, nodes=nodes, state=after)


@given(st.lists(images.logged_change, max_size=8))
def test_an_entry_of_the_metadata_log_is_read_as_it_was_written(changes: list[LoggedChange]) -> None:
    assert decode_changes(encode_changes(changes)) == tuple(changes)
