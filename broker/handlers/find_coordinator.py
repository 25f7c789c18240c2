"""FindCoordinator: which broker coordinates a group; a standalone broker, every group. Transactions have no coordinator here.

In a cluster it is the leader of the group's partition of `__consumer_offsets`. The first request has that topic created; until
then clients get COORDINATOR_NOT_AVAILABLE and retry.

A request for a transaction coordinator gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED: every client takes this code as final and
reports it at once. COORDINATOR_NOT_AVAILABLE, the obvious choice, would be retried for a minute.
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError
from broker.handlers.commits import want_topic
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of, text_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_slices
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

_GROUP, _TRANSACTION = 0, 1  # key types; 2 is a share group's
_REFUSALS = {
    _TRANSACTION: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this broker does not offer transactions"),
}
_UNKNOWN_KIND = (ErrorCode.INVALID_REQUEST, "only groups have a coordinator here")


def handle_find_coordinator(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.FIND_COORDINATOR)
    listener = request.origin.listener
    if request.version >= 4:
        return in_slices(_find_all(message, listener, request.version, context), context)
    where = _where(message.key_type if request.version >= 1 else _GROUP, message.key, listener, context)
    return [encode_response(response(throttle_time_ms=0, **where), request.version)]


def _find_all(message: Any, listener: str, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.FIND_COORDINATOR)
    rows = []
    for key in message.coordinator_keys:
        rows.append(response.Coordinator(key=key, **_where(message.key_type, key, listener, context)))
        yield None
    return (yield from encode_in_slices(response(throttle_time_ms=0, coordinators=rows), version, rows))


def _where(key_type: int, key: str, listener: str, context: Context) -> dict[str, Any]:
    code: int
    if key_type == _GROUP:
        try:
            broker_id, host, port, _ = context.view.coordinator(key, listener)
            return {"error_code": 0, "error_message": None, "node_id": broker_id, "host": host, "port": port}
        except BrokerError as error:
            want_topic(context)
            code, text = code_of(error), text_of(error)
    else:
        code, text = _REFUSALS.get(key_type, _UNKNOWN_KIND)
    return {"error_code": code, "error_message": text, "node_id": -1, "host": "", "port": -1}
