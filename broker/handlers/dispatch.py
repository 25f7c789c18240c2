"""A table from API key to handler. Keys that are not in it never get here: the framing rejects them."""

from __future__ import annotations

from collections.abc import Callable

from broker.handlers.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
    handle_list_config_resources,
)
from broker.handlers.context import Context
from broker.handlers.delete_records import handle_delete_records
from broker.handlers.elections import handle_elect_leaders
from broker.handlers.epoch_ends import handle_offset_for_leader_epoch
from broker.handlers.fetch import handle_fetch
from broker.handlers.find_coordinator import handle_find_coordinator
from broker.handlers.group_admin import handle_delete_groups, handle_describe_groups, handle_list_groups, handle_offset_delete
from broker.handlers.groups import handle_heartbeat, handle_join_group, handle_leave_group, handle_sync_group
from broker.handlers.list_offsets import handle_list_offsets
from broker.handlers.log_dirs import handle_describe_log_dirs
from broker.handlers.metadata import handle_api_versions, handle_describe_cluster, handle_metadata
from broker.handlers.offsets import handle_offset_commit, handle_offset_fetch
from broker.handlers.produce import handle_produce
from broker.handlers.producers import handle_init_producer_id
from broker.handlers.reassignments import handle_alter_partition_reassignments, handle_list_partition_reassignments
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Handler
from broker.handlers.topic_partitions import handle_create_partitions, handle_describe_topic_partitions
from broker.handlers.topics import handle_create_topics, handle_delete_topics
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request

HANDLERS: dict[int, Handler] = {
    ApiKey.PRODUCE: handle_produce,
    ApiKey.FETCH: handle_fetch,
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.METADATA: handle_metadata,
    ApiKey.OFFSET_COMMIT: handle_offset_commit,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.API_VERSIONS: handle_api_versions,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.LIST_CONFIG_RESOURCES: handle_list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
}


def dispatcher(context: Context) -> Callable[[Request], Parts | Pending]:
    """The one function that the network calls."""
    handlers, counts = HANDLERS, context.counters.requests

    def dispatch(request: Request) -> Parts | Pending:
        api_key = request.api_key
        counts[api_key] += 1
        return handlers[api_key](request, context)

    return dispatch
