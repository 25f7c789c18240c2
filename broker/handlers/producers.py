"""InitProducerId: a producer id that nobody had before, for idempotent producers. Transactions are not offered."""

from __future__ import annotations

from broker.handlers.context import Context
from broker.handlers.reply import Parts
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request


def handle_init_producer_id(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.INIT_PRODUCER_ID)
    if message.transactional_id is not None:
        answer = response(
            throttle_time_ms=0, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    else:
        answer = response(throttle_time_ms=0, error_code=0, producer_id=context.producer_ids.next(), producer_epoch=0)
    return [encode_response(answer, request.version)]
