"""A table from API key to handler. Keys that are not in it never get here: the framing rejects them."""

from __future__ import annotations

from collections.abc import Callable

from logbus_broker.api import (
    configs,
    fetch,
    group_admin,
    groups,
    handler,
    leaders_and_replicas,
    list_offsets,
    metadata,
    offsets,
    produce,
    topics,
    users,
)
from logbus_broker.protocol import api, framing

HANDLERS: dict[int, handler.Handler] = {
    api.ApiKey.PRODUCE: produce.handle_produce,
    api.ApiKey.FETCH: fetch.handle_fetch,
    api.ApiKey.LIST_OFFSETS: list_offsets.handle_list_offsets,
    api.ApiKey.METADATA: metadata.handle_metadata,
    api.ApiKey.OFFSET_COMMIT: offsets.handle_offset_commit,
    api.ApiKey.OFFSET_FETCH: offsets.handle_offset_fetch,
    api.ApiKey.FIND_COORDINATOR: groups.handle_find_coordinator,
    api.ApiKey.JOIN_GROUP: groups.handle_join_group,
    api.ApiKey.HEARTBEAT: groups.handle_heartbeat,
    api.ApiKey.LEAVE_GROUP: groups.handle_leave_group,
    api.ApiKey.SYNC_GROUP: groups.handle_sync_group,
    api.ApiKey.DESCRIBE_GROUPS: group_admin.handle_describe_groups,
    api.ApiKey.LIST_GROUPS: group_admin.handle_list_groups,
    api.ApiKey.SASL_HANDSHAKE: users.handle_sasl_handshake,
    api.ApiKey.API_VERSIONS: metadata.handle_api_versions,
    api.ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    api.ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    api.ApiKey.DELETE_RECORDS: list_offsets.handle_delete_records,
    api.ApiKey.INIT_PRODUCER_ID: produce.handle_init_producer_id,
    api.ApiKey.OFFSET_FOR_LEADER_EPOCH: list_offsets.handle_offset_for_leader_epoch,
    api.ApiKey.DESCRIBE_ACLS: users.handle_describe_acls,
    api.ApiKey.CREATE_ACLS: users.handle_create_acls,
    api.ApiKey.DELETE_ACLS: users.handle_delete_acls,
    api.ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    api.ApiKey.ALTER_CONFIGS: configs.handle_alter_configs,
    api.ApiKey.DESCRIBE_LOG_DIRS: metadata.handle_describe_log_dirs,
    api.ApiKey.SASL_AUTHENTICATE: users.handle_sasl_authenticate,
    api.ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    api.ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.handle_alter_configs,
    api.ApiKey.ELECT_LEADERS: leaders_and_replicas.handle_elect_leaders,
    api.ApiKey.ALTER_PARTITION_REASSIGNMENTS: leaders_and_replicas.handle_alter_partition_reassignments,
    api.ApiKey.LIST_PARTITION_REASSIGNMENTS: leaders_and_replicas.handle_list_partition_reassignments,
    api.ApiKey.DELETE_GROUPS: group_admin.handle_delete_groups,
    api.ApiKey.OFFSET_DELETE: group_admin.handle_offset_delete,
    api.ApiKey.DESCRIBE_CLIENT_QUOTAS: users.handle_describe_client_quotas,
    api.ApiKey.ALTER_CLIENT_QUOTAS: users.handle_alter_client_quotas,
    api.ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.handle_describe_user_scram_credentials,
    api.ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.handle_alter_user_scram_credentials,
    api.ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    api.ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    api.ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.handle_describe_topic_partitions,
}


def dispatcher(context: handler.Context) -> Callable[[framing.Request], handler.Parts | handler.Pending]:
    """The one function that the network calls."""
    handlers, counts = HANDLERS, context.counters.requests

    def dispatch(request: framing.Request) -> handler.Parts | handler.Pending:
        api_key = request.api_key
        counts[api_key] += 1
        return handlers[api_key](request, context)

    return dispatch
