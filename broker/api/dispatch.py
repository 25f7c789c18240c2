"""A table from API key to handler. Keys that are not in it never get here: the framing rejects them."""

from __future__ import annotations

from collections.abc import Callable

from broker.api import (
    configs,
    delete_records,
    elections,
    fetch,
    group_admin,
    groups,
    handler,
    list_offsets,
    metadata,
    offsets,
    produce,
    reassignments,
    topics,
)
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request

HANDLERS: dict[int, handler.Handler] = {
    ApiKey.PRODUCE: produce.handle_produce,
    ApiKey.FETCH: fetch.handle_fetch,
    ApiKey.LIST_OFFSETS: list_offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.OFFSET_COMMIT: offsets.handle_offset_commit,
    ApiKey.OFFSET_FETCH: offsets.handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.handle_find_coordinator,
    ApiKey.JOIN_GROUP: groups.handle_join_group,
    ApiKey.HEARTBEAT: groups.handle_heartbeat,
    ApiKey.LEAVE_GROUP: groups.handle_leave_group,
    ApiKey.SYNC_GROUP: groups.handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: group_admin.handle_describe_groups,
    ApiKey.LIST_GROUPS: group_admin.handle_list_groups,
    ApiKey.API_VERSIONS: metadata.handle_api_versions,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.DELETE_RECORDS: delete_records.handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: produce.handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: list_offsets.handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: configs.handle_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: metadata.handle_describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.handle_alter_configs,
    ApiKey.ELECT_LEADERS: elections.handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.handle_list_partition_reassignments,
    ApiKey.DELETE_GROUPS: group_admin.handle_delete_groups,
    ApiKey.OFFSET_DELETE: group_admin.handle_offset_delete,
    ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.handle_describe_topic_partitions,
}


def dispatcher(context: handler.Context) -> Callable[[Request], handler.Parts | handler.Pending]:
    """The one function that the network calls."""
    handlers, counts = HANDLERS, context.counters.requests

    def dispatch(request: Request) -> handler.Parts | handler.Pending:
        api_key = request.api_key
        counts[api_key] += 1
        return handlers[api_key](request, context)

    return dispatch
