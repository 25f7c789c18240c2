"""The gate of a listener that requires a login: what its connections may send before it, who they are after it, and for how
long.

A `ConnectionLogin` takes the place of the dispatcher until the peer has logged in. Only then does the connection get the
dispatcher and its fast path: a logged-in connection costs what any other costs, and a listener without logins has none of this.
Where a session ends (connections.max.reauth.ms, or the token's own end), a deadline takes the fast path away again; what comes
later, other than a new login, closes the connection.

A refusal is held back, longer each time (`login.FailedLogins`); the connection is closed with the answer. A connection that has
not logged in counts as silent (acceptor.py): it is closed after logbus.first.request.max.ms, and gives way to new ones.

Nothing here waits. Passwords of PLAIN are checked by one of the background threads, one at a time: a crowd with wrong passwords
must not keep other threads' work, nor more than one core, busy.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from logbus_broker import errors
from logbus_broker.api import error_codes, handler
from logbus_broker.api.produce_fast_path import ConnectionFastPath
from logbus_broker.api.purgatory import Deadline, Deadlines
from logbus_broker.log.background_tasks import Until
from logbus_broker.log.thread_pool import Job, Outcome
from logbus_broker.network.connection import Connection, Dispatch
from logbus_broker.protocol import codec, framing
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.security import sasl
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.login")

_BARE = -1  # the version of a token that came without a header
_NONCE_BYTES = 18
_FETCH_SECONDS_MAX = 5.0
_FETCH_BYTES_MAX = 1 << 20
_CHECKS_WAITING_MAX = 256  # a third of a second to three seconds of checking: more would be refused by their clients anyway
_WHY = {
    "credentials": "the password is wrong",
    "unknown_user": "there is no such user, or none for this mechanism",
    "malformed": "the client's message is malformed",
    "authorization_id": "a user asks for the rights of another",
    "mechanism": "the mechanism is not enabled on this listener",
    "state": "the request is not the next one of a login",
    "token": "the token is not valid",
    "other_principal": "a connection that logs in again does so as another user",
    "other_mechanism": "a connection that logs in again does so by another mechanism",
    "busy": "too many passwords wait to be checked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """Of one listener. Times as in the settings; a session of 0 ms has no end."""

    mechanisms: Mapping[str, sasl.Mechanism]
    frame_bytes_max: int
    session_ms_max: int
    failure_delay_ms: int


class PasswordChecks:
    """Jobs of a background thread, one after another."""

    def __init__(self, submit: Callable[[Job, Outcome], None]) -> None:
        self._submit = submit
        self._waiting: deque[tuple[Job, Outcome]] = deque()
        self._is_busy = False

    def in_thread(self, job: Job) -> sasl.Wait:
        """What a mechanism yields to have `job` done."""
        return partial(self._begin, job)

    def _begin(self, job: Job, outcome: Outcome) -> None:
        if len(self._waiting) >= _CHECKS_WAITING_MAX:
            text = "Authentication failed: too many logins at once, try again"
            outcome(None, errors.SaslAuthenticationFailed(text, reason="busy"))
            return
        self._waiting.append((job, outcome))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            job, outcome = self._waiting.popleft()
            self._submit(job, partial(self._done, outcome))

    def _done(self, outcome: Outcome, result: Any, error: BaseException | None) -> None:
        self._next()
        outcome(result, error)


class Gate:
    """Shared by the connections of one listener; `failed` by all listeners."""

    def __init__(
        self,
        rules: GateRules,
        context: handler.Context,
        *,
        dispatch: Dispatch,
        connect_fast_path: Callable[[], ConnectionFastPath | None],
        failed: sasl.FailedLogins,
    ) -> None:
        self.rules = rules
        self.context = context
        self.dispatch = dispatch
        self.connect_fast_path = connect_fast_path
        self.failed = failed

    def guard(self, connection: Connection) -> None:
        """A new connection has to log in first."""
        connection.require_login(ConnectionLogin(self, connection))


def open_gates(
    config: BrokerConfig,
    context: handler.Context,
    *,
    dispatch: Dispatch,
    connect_fast_path: Callable[[], ConnectionFastPath | None],
) -> dict[str, Gate]:
    """One for each listener that requires a login, by its name. StartupError says what is missing."""
    users = sasl.Users(lambda: context.security.state, secrets.token_bytes(32))
    checks = PasswordChecks(context.thread_pool.submit)
    failed = sasl.FailedLogins()
    offered: dict[str, sasl.Mechanism] = {
        name: partial(sasl.scram_exchange, mechanism, users, partial(secrets.token_urlsafe, _NONCE_BYTES))
        for name, mechanism in sasl.NAMES.items()
    }
    offered[sasl.PLAIN] = partial(sasl.plain, users, checks.in_thread)
    gates = {}
    for listener in config.listeners:
        if not config.protocol_of(listener.name).has_login:
            continue
        settings = config.at_listener(listener.name)
        if sasl.OAUTHBEARER in settings.sasl_enabled_mechanisms:
            offered[sasl.OAUTHBEARER] = _oauthbearer(settings, context)
        rules = GateRules(
            mechanisms={name: offered[name] for name in settings.sasl_enabled_mechanisms},
            frame_bytes_max=settings.sasl_receive_bytes_max,
            session_ms_max=settings.connections_reauth_ms_max,
            failure_delay_ms=settings.failed_authentication_delay_ms,
        )
        gates[listener.name] = Gate(rules, context, dispatch=dispatch, connect_fast_path=connect_fast_path, failed=failed)
    return gates


def _oauthbearer(settings: BrokerConfig, context: handler.Context) -> sasl.Mechanism:
    try:
        from logbus_broker.security import oauthbearer  # only where it is enabled: it brings a library of its own
    except ImportError as error:
        raise errors.StartupError(
            f"OAUTHBEARER (sasl.enabled.mechanisms) needs PyJWT ({error}): pip install 'logbus-broker[oauthbearer]'"
        ) from None
    rules = oauthbearer.TokenRules(
        issuer=settings.oauthbearer_issuer,
        audiences=settings.oauthbearer_audiences,
        subject_claim=settings.oauthbearer_subject_claim,
        skew_seconds=settings.oauthbearer_skew_seconds,
    )
    read = partial(_read_url, settings.oauthbearer_jwks_url)
    keys = oauthbearer.IssuerKeys(
        partial(context.thread_pool.submit, read), context.clock.monotonic, settings.oauthbearer_refresh_ms / 1000
    )
    return partial(oauthbearer.exchange, rules, keys)


def _read_url(url: str) -> bytes:
    """On a background thread. OSError if it cannot be read."""
    from urllib.request import urlopen

    with urlopen(url, timeout=_FETCH_SECONDS_MAX) as answer:
        if not answer.url.startswith(("https:", "file:")):
            raise OSError(f"{url} leads to {answer.url}, which is not encrypted")
        content: bytes = answer.read(_FETCH_BYTES_MAX)
    return content


class _Later(Deadline):
    """Calls `expired` when the time has come."""

    __slots__ = ("expired",)

    def __init__(self, deadline: float, expired: Callable[[], None]) -> None:
        super().__init__(deadline)
        self.expired = expired

    def expire(self) -> None:
        self.expired()

    def take_back(self, deadlines: Deadlines) -> Callable[[], None]:
        """It will not come. Returns what would have been called: nobody is to be kept alive by a deadline that is over."""
        deadlines.cancel(self)
        expired, self.expired = self.expired, _nothing
        return expired


def _nothing() -> None: ...


class ConnectionLogin:
    """Of one connection: its first login, and those that follow."""

    def __init__(self, gate: Gate, connection: Connection) -> None:
        self._gate = gate
        self._connection = connection
        self._state: sasl.LoginState | None = sasl.LoginState(gate.rules.mechanisms)
        self._login: tuple[str, sasl.Login] | None = None  # with its mechanism, once there is one
        self._held_back: _Later | None = None  # the answer to a login that was refused
        self._session: _Later | None = None  # its end
        self._is_expired = False
        self._is_closed = False
        self.frame_bytes_max = gate.rules.frame_bytes_max

    @property
    def is_held_back(self) -> bool:
        """Whether it has been refused, and the answer that closes it is yet to be sent."""
        return self._held_back is not None

    def close(self) -> None:
        """The connection is closed: nothing waits for its deadlines any longer."""
        self._is_closed = True
        deadlines = self._gate.context.deadlines
        if self._session is not None:
            self._session.take_back(deadlines)
        if self._held_back is not None:
            self._held_back.take_back(deadlines)()  # the task that waits for it ends

    def read(self, frame: memoryview, origin: framing.Origin) -> framing.Request:
        """A frame as a request. Raises ProtocolError."""
        if self._state is not None and self._state.is_bare:
            return framing.Request(ApiKey.SASL_AUTHENTICATE, _BARE, 0, None, frame, origin=origin)
        return framing.read_request(frame, origin)

    def dispatch(self, request: framing.Request) -> handler.Parts | handler.Pending:
        """Before the first login is done. Raises ProtocolError where nothing is to be answered."""
        assert self._state is not None, "with the login, the connection was given another dispatcher"
        return self._log_in(request, self._state)

    def dispatch_again(self, request: framing.Request) -> handler.Parts | handler.Pending:
        """After a login that has an end: a new one may begin at any time, and requests go on beside it."""
        api_key = request.api_key
        if api_key == ApiKey.SASL_HANDSHAKE and request.version > 0:
            self._state = self._state or sasl.LoginState(self._gate.rules.mechanisms, self._login)
        elif api_key != ApiKey.SASL_AUTHENTICATE or self._state is None:
            if not self._is_expired:
                return self._gate.dispatch(request)
            late = handler.Pending()
            late.close_instead("session_expired")
            return late
        return self._log_in(request, self._state)

    def _log_in(self, request: framing.Request, state: sasl.LoginState) -> handler.Parts | handler.Pending:
        """One step of a login."""
        api_key = request.api_key
        requests = self._gate.context.counters.requests
        try:
            if api_key == ApiKey.SASL_HANDSHAKE:
                requests[api_key] += 1
                message = codec.decode_request(api_key, request.version, request.body)
                state.begin(message.mechanism, is_bare=request.version == 0)
                return [_handshake_answer(request.version, ErrorCode.NONE, self._gate.rules)]
            if api_key == ApiKey.SASL_AUTHENTICATE:
                requests[api_key] += 1
                return self._answer(request, self._decide(request, state, state.take(_token_in(request))))
            if api_key != ApiKey.API_VERSIONS:
                state.refuse(ApiKey(api_key).name)
            state.allow_versions(is_supported=request.supported)
        except errors.AuthenticationError as error:
            return self._answer(request, self._refuse(state, error, _refusal(request, error, self._gate.rules)))
        return self._gate.dispatch(request)

    def _answer(self, request: framing.Request, steps: handler.Answering) -> handler.Parts | handler.Pending:
        """What the steps return; as a whole frame if the client sends tokens without headers."""
        answer = handler.in_slices(steps, self._gate.context)
        if request.version != _BARE:
            return answer
        if not isinstance(answer, handler.Pending):
            parts, answer = answer, handler.Pending()
            answer.parts = parts
        answer.is_framed = True
        return answer

    def _decide(
        self, request: framing.Request, state: sasl.LoginState, step: bytes | sasl.Wait | sasl.Login
    ) -> handler.Answering:
        """Wait for what the mechanism waits for, and answer."""
        try:
            while not isinstance(step, (bytes, sasl.Login)):
                step = state.resume((yield Until(step)))
        except errors.AuthenticationError as error:
            return (yield from self._refuse(state, error, _refusal(request, error, self._gate.rules)))
        if self._is_closed:
            return []
        if isinstance(step, bytes):
            return [_token_answer(request.version, step, 0)]
        return [_token_answer(request.version, step.last, self._admit(state, step))]

    def _admit(self, state: sasl.LoginState, admitted: sasl.Login) -> int:
        """The peer is in, or stays in. Returns how long its session lasts, in ms; 0 without an end."""
        gate, context, connection = self._gate, self._gate.context, self._connection
        limits = [gate.rules.session_ms_max] if gate.rules.session_ms_max else []
        if admitted.until_ms is not None:
            limits.append(max(admitted.until_ms - context.clock.now_ms(), 1))  # a token that clocks disagree on: 0 is "no end"
        session_ms = min(limits, default=0)
        if self._session is not None:
            self._session.take_back(context.deadlines)
        if session_ms:
            self._session = _Later(context.clock.monotonic() + session_ms / 1000, self._end_session)
            context.deadlines.add(self._session)
        context.counters.network.logins += 1
        gate.failed.forget(connection.host, admitted.user)
        origin = connection.origin
        if self._login is None:
            origin = origin._replace(principal=f"User:{admitted.user}")
            logger.debug("logged in", extra={"peer": connection.peer, "user": admitted.user, "mechanism": state.mechanism})
        if self._login is None or self._is_expired:
            connection.admit(origin, self.dispatch_again if session_ms else gate.dispatch, gate.connect_fast_path())
        self._login, self._state, self._is_expired = (state.mechanism, admitted), None, False
        return session_ms

    def _end_session(self) -> None:
        self._is_expired = True
        self._connection.leave_fast_path()

    def _refuse(self, state: sasl.LoginState, error: errors.AuthenticationError, answer: handler.Parts) -> handler.Answering:
        """Hold the answer back, and close the connection with it."""
        gate, context, connection = self._gate, self._gate.context, self._connection
        context.counters.network.refused_logins[error.reason] += 1
        now = context.clock.monotonic()
        first_seconds = gate.rules.failure_delay_ms / 1000
        seconds, is_news = gate.failed.note(connection.host, error.user, error.reason, first_seconds, now)
        if is_news:
            why = f"{_WHY[error.reason]}: {error.__cause__}" if error.__cause__ else _WHY[error.reason]
            details = {"peer": connection.peer, "user": error.user, "mechanism": state.mechanism}
            logger.warning("a login was refused: %s", why, extra={**details, "listener": connection.origin.listener})
        if seconds and not self._is_closed:
            yield Until(partial(self._hold_back, now + seconds))
        connection.closing = "login_refused"
        return answer

    def _hold_back(self, until: float, outcome: Outcome) -> None:
        self._held_back = _Later(until, partial(self._let_go, outcome))
        self._gate.context.deadlines.add(self._held_back)

    def _let_go(self, outcome: Outcome) -> None:
        self._held_back = None
        outcome(None, None)


# -- answers -------------------------------------------------------------------------------------------------------------------


def _token_in(request: framing.Request) -> bytes:
    if request.version == _BARE:
        return bytes(request.body)
    token: bytes = codec.decode_request(request.api_key, request.version, request.body).auth_bytes
    return token


def _handshake_answer(version: int, code: ErrorCode, rules: GateRules) -> bytes:
    response = codec.response_class(ApiKey.SASL_HANDSHAKE)
    return codec.encode_response(response(error_code=code, mechanisms=list(rules.mechanisms)), version)


def _token_answer(version: int, token: bytes, session_ms: int) -> bytes:
    if version == _BARE:
        return framing.FRAME_LENGTH.pack(len(token)) + token
    response = codec.response_class(ApiKey.SASL_AUTHENTICATE)
    return codec.encode_response(response(error_message=None, auth_bytes=token, session_lifetime_ms=session_ms), version)


def _refusal(request: framing.Request, error: errors.AuthenticationError, rules: GateRules) -> handler.Parts:
    """The request's own answer, with the error in it. Raises ProtocolError where there is none: such a connection is closed."""
    code, api_key = error_codes.code_of(error), request.api_key
    version = request.version if request.supported else 0
    if version == _BARE:
        return []
    if api_key == ApiKey.SASL_HANDSHAKE:
        return [_handshake_answer(version, code, rules)]
    answer = codec.response_class(api_key)()
    if api_key == ApiKey.SASL_AUTHENTICATE:
        answer.error_message = error_codes.text_of(error)
    elif api_key == ApiKey.METADATA:
        topics = codec.decode_request(api_key, version, request.body).topics or ()
        answer.topics = [answer.MetadataResponseTopic(error_code=code, name=topic.name) for topic in topics]
    elif api_key != ApiKey.API_VERSIONS:
        raise errors.ProtocolError(str(error))
    answer.error_code = code
    return [codec.encode_response(answer, version)]
