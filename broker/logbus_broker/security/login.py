"""The login of one connection, as a state machine without I/O: which request may come next, and who the peer is in the end.

    ApiVersions, at most once; SaslHandshake, which names a mechanism; then the mechanism's tokens until it has decided

A mechanism is a generator that is begun with the client's first token. It yields what the server answers and resumes with the
client's next token; or it yields something to wait for (a password is checked by a thread) and resumes with the result. It
returns the `Login`, or raises a SaslAuthenticationFailed. SCRAM is in `scram.py`, tokens signed by an issuer in `oauthbearer.py`.

What a peer gets wrong is either answered, after a delay, and then the connection is closed (AuthenticationError); or it is not
worth an answer (ProtocolError): as with Apache Kafka, whose codes and order of checks these are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NoReturn

from logbus_broker.errors import IllegalSaslState, ProtocolError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from logbus_broker.security import scram

Wait = Callable[[Callable[[Any, BaseException | None], None]], None]  # begins it; the callback gets the result or the error
Exchange = Generator[bytes | Wait, Any, scram.Login]
Mechanism = Callable[[bytes], Exchange]  # of the client's first token

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *scram.NAMES, OAUTHBEARER)

_TOKENS_MAX = 4  # no mechanism here needs more than three


class LoginState:
    """`mechanisms` are those of the listener, by name. `earlier`, on a connection that logs in again, are mechanism and login so
    far: neither may change."""

    def __init__(self, mechanisms: Mapping[str, Mechanism], earlier: tuple[str, scram.Login] | None = None) -> None:
        self.mechanism = ""
        self.is_bare = False  # tokens come without a header, since the client's SaslHandshake was of version 0
        self._mechanisms = mechanisms
        self._earlier = earlier
        self._has_asked_versions = earlier is not None
        self._exchange: Exchange | None = None
        self._tokens = 0

    def allow_versions(self, *, is_supported: bool) -> None:
        """The peer sends ApiVersions; one of a version that is not supported is answered with those that are, and repeated."""
        self._refuse_after_handshake("ApiVersions")
        if self._has_asked_versions:
            raise ProtocolError("a second ApiVersions before the login")
        self._has_asked_versions = is_supported

    def begin(self, mechanism: str, *, is_bare: bool) -> None:
        """The peer sends SaslHandshake."""
        self._refuse_after_handshake("a second SaslHandshake")
        if mechanism not in self._mechanisms:
            enabled = ", ".join(self._mechanisms)
            raise UnsupportedSaslMechanism(f"mechanism {mechanism!r} is not enabled, only {enabled}", reason="mechanism")
        self.mechanism, self.is_bare = mechanism, is_bare

    def refuse(self, request: str) -> NoReturn:
        """The peer sends something that is no part of a login."""
        self._refuse_after_handshake(request)
        raise ProtocolError(
            f"{request} before a login: this listener requires one (security.protocol=SASL_SSL or SASL_PLAINTEXT)"
        )

    def _refuse_after_handshake(self, request: str) -> None:
        if self.mechanism:
            raise IllegalSaslState(f"{request} instead of a token of {self.mechanism}", reason="state")

    def take(self, token: bytes) -> bytes | Wait | scram.Login:
        """The peer sends a token. Returns what the mechanism yields, or its result."""
        if not self.mechanism:
            self.refuse("SaslAuthenticate without SaslHandshake")
        self._tokens += 1
        if self._tokens > _TOKENS_MAX:
            raise IllegalSaslState(f"more than {_TOKENS_MAX} tokens of {self.mechanism}", reason="state")
        if self._exchange is None:
            if self._earlier is not None and self._earlier[0] != self.mechanism:
                text = f"Cannot change mechanisms during re-authentication from {self._earlier[0]}: {self.mechanism}"
                raise SaslAuthenticationFailed(text, reason="other_mechanism", user=self._earlier[1].user)
            self._exchange = self._mechanisms[self.mechanism](token)
            return self._advance(partial(next, self._exchange))
        return self._advance(partial(self._exchange.send, token))

    def resume(self, result: Any) -> bytes | Wait | scram.Login:
        """What the mechanism waited for is there."""
        assert self._exchange is not None, "it was begun before it waited"
        return self._advance(partial(self._exchange.send, result))

    def _advance(self, go_on: Callable[[], bytes | Wait]) -> bytes | Wait | scram.Login:
        try:
            return go_on()
        except StopIteration as ended:
            login: scram.Login = ended.value
        if self._earlier is not None and self._earlier[1].user != login.user:
            before = self._earlier[1].user
            text = f"Cannot change principals during re-authentication from User:{before}: User:{login.user}"
            raise SaslAuthenticationFailed(text, reason="other_principal", user=before)
        return login


def plain(users: scram.Users, in_thread: Callable[[Callable[[], bool]], Wait], first: bytes) -> Exchange:
    """PLAIN (RFC 4616) for the users that have a SCRAM credential. The password is checked by a thread: that is PBKDF2."""
    parts = first.split(b"\0")
    if len(parts) != 3:
        text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
        raise SaslAuthenticationFailed(text, reason="malformed")
    try:
        authorization_id, user, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise SaslAuthenticationFailed("Invalid SASL/PLAIN response: not UTF-8", reason="malformed") from None
    for name, value in (("username", user), ("password", password)):
        if not value:
            raise SaslAuthenticationFailed(f"Authentication failed: {name} not specified", reason="malformed", user=user)
    if authorization_id not in ("", user):
        raise scram.other_authorization_id(user)
    mechanism, credential, is_known = users.find(user, *scram.NAMES.values())
    is_right = yield in_thread(partial(scram.is_password, credential, mechanism, password))
    if not (is_right and is_known):
        text = "Authentication failed: Invalid username or password"
        raise SaslAuthenticationFailed(text, reason="credentials" if is_known else "unknown_user", user=user)
    return scram.Login(user)


_DELAY_SECONDS_MAX = 10.0
_FORGOTTEN_SECONDS = 600.0
_LOGGED_AGAIN_SECONDS = 10.0
_ROWS_MAX = 10_000  # who guesses chooses the names, and how long they are: a few megabytes of them
_NAME_LENGTH_MAX = 100


class FailedLogins:
    """How long the refusal of a login is held back: `first_seconds` at first, twice as long each time that the same user is
    refused at the same address again, at most ten seconds. Somebody who knows the password, there or elsewhere, does not wait."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], tuple[int, float, str, float]] = OrderedDict()  # the one refused last is last

    def note(self, host: str, user: str, reason: str, first_seconds: float, now: float) -> tuple[float, bool]:
        """Count a refusal; returns how long it is held back, and whether its reason is news that is worth a line in the log."""
        key = (host, user[:_NAME_LENGTH_MAX])
        count, at, logged, logged_at = self._rows.pop(key, (0, now, "", now))
        if now - at >= _FORGOTTEN_SECONDS:
            count, logged = 0, ""
        is_news = logged != reason or now - logged_at >= _LOGGED_AGAIN_SECONDS
        self._rows[key] = (count + 1, now, reason, now if is_news else logged_at)
        if len(self._rows) > _ROWS_MAX:
            self._rows.popitem(last=False)
        return min(first_seconds * 2 ** min(count, 30), _DELAY_SECONDS_MAX), is_news

    def forget(self, host: str, user: str) -> None:
        """The user has logged in there."""
        self._rows.pop((host, user[:_NAME_LENGTH_MAX]), None)
