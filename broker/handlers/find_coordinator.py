"""FindCoordinator: this broker coordinates every group. Transactions have no coordinator here.

A client that asks for a transaction's is told TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the code that every client takes for final
and reports at once. COORDINATOR_NOT_AVAILABLE, the obvious one, is retried for a minute.
"""

from __future__ import annotations

from typing import Any

from broker.handlers.context import Context
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
    where = _where(message.key_type if request.version >= 1 else _GROUP, context)
    if request.version >= 4:
        return in_slices(_find_all(message, where, request.version), context)
    return [encode_response(response(throttle_time_ms=0, **where), request.version)]


def _find_all(message: Any, where: dict[str, Any], version: int) -> Answering:
    response = response_class(ApiKey.FIND_COORDINATOR)
    rows = []
    for key in message.coordinator_keys:
        rows.append(response.Coordinator(key=key, **where))
        yield None
    return (yield from encode_in_slices(response(throttle_time_ms=0, coordinators=rows), version, rows))


def _where(key_type: int, context: Context) -> dict[str, Any]:
    if key_type == _GROUP:
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": context.config.broker_id,
            "host": context.advertised_host,
            "port": context.advertised_port,
        }
    code, text = _REFUSALS.get(key_type, _UNKNOWN_KIND)
    return {"error_code": code, "error_message": text, "node_id": -1, "host": "", "port": -1}
