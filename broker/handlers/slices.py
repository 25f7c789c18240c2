"""Requests that name thousands of things, answered by chores: the loop takes its turns in between.

A handler is a generator that returns the answer's parts. It starts at once and, if it is short, finishes at once. What the client
sends after such a request waits unread until it is answered: so the answers are those of a broker that handles the requests of a
connection one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sized
from functools import partial, wraps
from typing import Any

from broker.chores import Step, Steps
from broker.handlers.context import Context
from broker.handlers.reply import Parts, Pending
from broker.protocol.control import decode_request, encode_response
from broker.protocol.framing import Request

# Encoding this many rows takes a millisecond or two. More are encoded by a helper: it alternates with the loop on the interpreter
# lock, half a millisecond each, instead of blocking the loop for the whole encoding.
_ROWS_ENCODED_ON_LOOP_MAX = 500

Answering = Generator[Step, Any, Parts]
Work = Callable[[Any, int, Context], Answering]  # of a decoded message and its version
Handler = Callable[[Request, Context], Parts | Pending]


def in_slices(steps: Answering, context: Context) -> Parts | Pending:
    """Answer with the return value of `steps`."""
    pending = Pending(stops_reading=True)
    context.chores.begin(_complete(steps, pending), pending.fail_as_defect)
    return _now_or_later(pending)


def in_turn(steps: Answering, context: Context) -> Parts | Pending:
    """The same for requests that change topics or settings: after all such requests that arrived earlier. In a cluster, other
    brokers change them as well: a queue would be useless, and a request that waits for ZooKeeper would hold up all others."""
    pending = Pending(stops_reading=True)
    begin = context.chores.enqueue if context.cluster is None else context.chores.begin
    begin(_complete(steps, pending), pending.fail_as_defect)
    return _now_or_later(pending)


def answered_in_slices(work: Work) -> Handler:
    """The handler that decodes a request and has `work` answer it, in slices."""
    return _decoding(work, in_slices)


def answered_in_turn(work: Work) -> Handler:
    """The same, in turn."""
    return _decoding(work, in_turn)


def _decoding(work: Work, begin: Callable[[Answering, Context], Parts | Pending]) -> Handler:
    @wraps(work)
    def handle(request: Request, context: Context) -> Parts | Pending:
        message = decode_request(request.api_key, request.version, request.body)
        return begin(work(message, request.version, context), context)

    return handle


def _complete(steps: Answering, pending: Pending) -> Steps:
    parts = yield from steps
    pending.complete(parts)


def _now_or_later(pending: Pending) -> Parts | Pending:
    return pending if pending.parts is None or pending.closes else pending.parts


def encode_in_slices(response: Any, version: int, *rows: Sized) -> Answering:
    """The answer's parts; `rows` are its lists that determine how long encoding takes."""
    if sum(map(len, rows)) <= _ROWS_ENCODED_ON_LOOP_MAX:
        return [encode_response(response, version)]
    return [(yield partial(encode_response, response, version))]
