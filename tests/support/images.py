"""Values of the image, drawn by Hypothesis."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from logbus_broker.cluster import metadata_image, security_store
from logbus_broker.security import state as security_state

broker_ids = st.integers(0, 5)
replica_lists = st.lists(broker_ids, min_size=1, max_size=4, unique=True).map(tuple)
versions = st.integers(0, 4)
topic_names = st.sampled_from(["access", "errors", "_x.y-z"])
topic_ids = st.integers(1, 3).map(lambda number: uuid.UUID(int=number))
texts = st.text(st.characters(codec="utf-8"), max_size=6)

states = st.builds(
    metadata_image.PartitionState,
    leader=st.integers(-1, 5),
    leader_epoch=st.integers(0, 2**31 - 1),
    isr=replica_lists,
    version=versions,
    controller_epoch=st.integers(0, 9),
    eligible=st.one_of(st.just(()), replica_lists),
    handover_to=st.one_of(st.none(), broker_ids),
    is_recovering=st.booleans(),
)
topic_nodes = st.builds(
    metadata_image.TopicNode,
    name=topic_names,
    topic_id=topic_ids,
    replicas=st.lists(replica_lists, max_size=12).map(tuple),
    version=versions,
    adding=st.dictionaries(st.integers(0, 3), replica_lists),
    removing=st.dictionaries(st.integers(0, 3), replica_lists),
)
settings_values = st.builds(metadata_image.Settings, values=st.dictionaries(texts, texts), version=versions)
endpoints = st.builds(
    metadata_image.Endpoint,
    host=st.sampled_from(["broker-1", "10.0.0.1", "fd00::1", "::"]),
    port=st.integers(0, 65535),
    security_protocol=st.sampled_from(["PLAINTEXT", "SSL"]),
)
broker_nodes = st.builds(
    metadata_image.BrokerNode,
    broker_id=broker_ids,
    incarnation=st.integers(0, 99),
    endpoints=st.dictionaries(st.sampled_from(["PLAINTEXT", "CLIENT", "REPLICATION_2"]), endpoints),
    rack=texts,
    directory_id=texts,
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.sampled_from(
    ["*", ".", "..", "<default>", "a/b", "50%"]
)
quota_values = st.dictionaries(
    st.sampled_from(["producer_byte_rate", "request_percentage"]), st.floats(allow_nan=False), min_size=1
)
quota_entities = st.one_of(
    st.builds(lambda kind, name: frozenset({(kind, name)}), st.sampled_from(["user", "client-id", "ip"]), st.none() | names),
    st.builds(lambda user, client: frozenset({("user", user), ("client-id", client)}), st.none() | names, st.none() | names),
)
acls = st.builds(
    security_state.Acl,
    resource_type=st.sampled_from(list(security_state.AclResourceType)[1:]),
    pattern_type=st.sampled_from([security_state.PatternType.LITERAL, security_state.PatternType.PREFIXED]),
    resource_name=names,
    principal=texts,
    host=texts,
    operation=st.sampled_from(list(security_state.AclOperation)[1:]),
    permission=st.sampled_from(list(security_state.AclPermission)[1:]),
)
keys = st.binary(max_size=8)
security_states = st.builds(
    security_state.SecurityState,
    credentials=st.dictionaries(
        st.tuples(names, st.sampled_from(security_state.ScramMechanism)),
        st.builds(
            security_state.ScramCredential,
            salt=keys,
            iterations=st.integers(4_096, 16_384),
            stored_key=keys,
            server_key=keys,
        ),
        max_size=3,
    ),
    acls=st.frozensets(acls, max_size=4),
    quotas=st.dictionaries(quota_entities, quota_values, max_size=3),
    nobody_key=keys,
)
logged_change: st.SearchStrategy[metadata_image.LoggedChange] = st.one_of(
    st.builds(metadata_image.TopicChange, topic=topic_nodes),
    st.builds(metadata_image.StateChange, topic=topic_names, topic_id=topic_ids, index=st.integers(0, 12), state=states),
    st.builds(metadata_image.TopicSettingsChange, topic=topic_names, topic_id=topic_ids, settings=settings_values),
    st.builds(metadata_image.BrokerSettingsChange, name=st.sampled_from(["<default>", "1"]), settings=settings_values),
    st.builds(metadata_image.SecurityChange, version=versions, nodes=security_states.map(security_store.by_znode)),
    st.builds(metadata_image.DeletionRequested, topic=topic_names, topic_id=topic_ids),
    st.builds(metadata_image.TopicDeleted, topic=topic_names, topic_id=topic_ids),
    st.builds(metadata_image.IncarnationRaised, broker_id=broker_ids, incarnation=versions),
)
