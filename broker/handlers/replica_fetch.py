"""Fetch from other brokers, for the partitions they follow. `Leader` answers when there is something for them.

A consumer could claim to be a replica, and its claimed offsets would count as replicated. There is no authentication yet, so a
replica has to use the inter-broker listener, to know the cluster id, and to be a broker that the cluster has seen.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.handlers.context import Context
from broker.handlers.reply import Parts, Pending
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.framing import Request
from broker.protocol.replica_fetch import REPLICA_FETCH_VERSION, ReplicaFetch, encode_replica_answer, parse_replica_fetch

if TYPE_CHECKING:
    from broker.replication.leader import Leader

logger = logging.getLogger("broker.handlers")


def replica_fetch_of(request: Request) -> ReplicaFetch | None:
    """The parsed request, if another broker sent it; a consumer's request costs one comparison."""
    return parse_replica_fetch(request.body) if request.version == REPLICA_FETCH_VERSION else None


def handle_replica_fetch(fetch: ReplicaFetch, request: Request, context: Context, leader: Leader) -> Parts | Pending:
    refusal = _refusal(fetch, request, context)
    if refusal is not None:
        context.counters.errors[ApiKey.FETCH, refusal] += 1
        return list(encode_replica_answer([], session_id=0, error=refusal))
    pending = Pending(stops_reading=False)  # a follower sends its next request while this one waits
    leader.fetch(fetch, request.origin, lambda parts: _complete(pending, parts))
    return pending


def _complete(pending: Pending, parts: Parts) -> None:
    if not pending.is_cancelled:  # else the connection is gone, and the answer's files are released with it
        pending.complete(parts)


def _refusal(fetch: ReplicaFetch, request: Request, context: Context) -> ErrorCode | None:
    listener, expected = request.origin.listener, context.config.inter_broker_listener
    if listener != expected:
        logger.warning(
            "%s fetches as broker %d on listener %s: brokers use %s (inter.broker.listener.name)",
            request.origin.host,
            fetch.replica_id,
            listener,
            expected,
        )
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if fetch.cluster_id is None:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if context.cluster is not None and fetch.replica_id not in context.cluster.image.incarnations:
        logger.warning("%s fetches as broker %d, which the cluster has never seen", request.origin.host, fetch.replica_id)
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None
