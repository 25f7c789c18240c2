"""InitProducerId: a producer id that was never used before, for idempotent producers. Transactions are not supported."""

from __future__ import annotations

from broker.handlers.context import Context
from broker.handlers.error_codes import code_of
from broker.handlers.reply import Parts, Pending
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request


def handle_init_producer_id(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    if message.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if message.transactional_id else ErrorCode.INVALID_REQUEST
        return [_encode(-1, code, request.version)]
    pending = Pending(stops_reading=True)

    def taken(producer_id: int, error: BaseException | None) -> None:
        code = ErrorCode.NONE if error is None else code_of(error)
        pending.complete_with(lambda: [_encode(producer_id, code, request.version)])

    context.producer_ids.take(taken)
    return pending


def _encode(producer_id: int, code: int, version: int) -> bytes:
    answer = response_class(ApiKey.INIT_PRODUCER_ID)(
        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1
    )
    return encode_response(answer, version)
