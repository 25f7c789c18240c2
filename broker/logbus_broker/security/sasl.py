"""The login of one connection, as a state machine without I/O: which request may come next, and who the peer is in the end; and
SCRAM (RFC 5802) and PLAIN, the passwords' mechanisms.

A login by SCRAM costs the broker some HMACs and no PBKDF2: the client derives the keys. Nothing of what is kept, and nothing that
is sent, lets anybody else log in.

Guessing user names tells nothing: a user that does not exist is answered like one that does, with a salt that never changes and
that only this cluster can compute, and is refused where a wrong password is refused, in the same words. Apache Kafka refuses it
one message earlier.

librdkafka before 2.6.1, so the kcat of Debian 12, puts its own nonce twice before the server's. Its proof covers what it sends,
and the server's nonce is whole in it, so that form is as good as the correct one, and is accepted. Nothing else is: a nonce that
is not compared lets an old exchange be replayed (CVE-2024-56128).

    ApiVersions, at most once; SaslHandshake, which names a mechanism; then the mechanism's tokens until it has decided

A mechanism is a generator that is begun with the client's first token. It yields what the server answers and resumes with the
client's next token; or it yields something to wait for (a password is checked by a thread) and resumes with the result. It
returns the `Login`, or raises a SaslAuthenticationFailed. Tokens signed by an issuer are in `oauthbearer.py`.

What a peer gets wrong is either answered, after a delay, and then the connection is closed (AuthenticationError); or it is not
worth an answer (ProtocolError): as with Apache Kafka, whose codes and order of checks these are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from logbus_broker.errors import IllegalSaslState, ProtocolError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from logbus_broker.security.state import ScramCredential, ScramMechanism, SecurityState

NAMES = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384  # Kafka's; PBKDF2 of the largest takes a client 10 ms
SALT_BYTES = 32  # of the credentials made here

_HASHES = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}
_MESSAGE_BYTES_MAX = 4_096  # a user name, a nonce and a proof; the expressions below would hold the loop over half a megabyte
_NAME = r"(?:[^\0,=]|=2C|=3D)+"
_NONCE = r"[!-+\--~]+"
_EXTENSIONS = r"(?:,(?!m=)[A-Za-z]=[^\0,]+)*"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_CLIENT_FIRST = re.compile(
    f"(?P<gs2>n,(?:a=(?P<authorization>{_NAME}))?,)(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_SERVER_FIRST = re.compile(f"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}")
_CLIENT_FINAL = re.compile(f"(?P<signed>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})")


# -- what is kept of a password ------------------------------------------------------------------------------------------------


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's SaltedPassword. A millisecond or more, without the interpreter lock. As in Kafka and its clients, the password
    is its UTF-8 bytes, not normalised."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """What is kept of a SaltedPassword, which is not: who has that can log in."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def credential_of_password(mechanism: ScramMechanism, password: str, salt: bytes) -> ScramCredential:
    """What is kept of a password. Takes as long as `salted_password`."""
    return credential_of(mechanism, salted_password(mechanism, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN)


def is_password(credential: ScramCredential, mechanism: ScramMechanism, password: str) -> bool:
    """Whether the credential was made of this password. Takes as long as `salted_password`."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    theirs = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(theirs.stored_key, credential.stored_key)


class Users:
    """The credentials of a SecurityState as it is now, and of users that do not exist. `own_key` serves until there is a user at
    all: then the state has a key, the same at every broker and after each restart."""

    def __init__(self, state: Callable[[], SecurityState], own_key: bytes) -> None:
        self._state = state
        self._own_key = own_key
        self._shapes: dict[ScramMechanism, tuple[int, int]] = {}
        self._shapes_of: SecurityState | None = None

    def find(self, user: str, *mechanisms: ScramMechanism) -> tuple[ScramMechanism, ScramCredential, bool]:
        """Of the first of these mechanisms for which the user has a credential; False says that it is that of nobody."""
        state = self._state()
        nobody = self._nobody(user, mechanisms[0], state)  # for users that exist, too: it takes four times as long as all else
        for mechanism in mechanisms:
            credential = state.credentials.get((user, mechanism))
            if credential is not None:
                return mechanism, credential, True
        return mechanisms[0], nobody, False

    def _nobody(self, user: str, mechanism: ScramMechanism, state: SecurityState) -> ScramCredential:
        """It looks like most of the others: tools differ in the length of the salts that they make."""
        if self._shapes_of is not state:
            self._shapes, self._shapes_of = {}, state
            for kind in ScramMechanism:
                rows = [row for (_, of), row in state.credentials.items() if of == kind]
                shapes = Counter((len(row.salt), row.iterations) for row in rows)
                self._shapes[kind] = max(shapes, key=lambda shape: (shapes[shape], shape), default=(SALT_BYTES, ITERATIONS_MIN))
        length, iterations = self._shapes[mechanism]
        key, name = state.nobody_key or self._own_key, f"{mechanism.name} {user}".encode()
        salt = hashlib.shake_256(hmac.digest(key, b"salt of " + name, "sha256")).digest(length)
        false_key = hmac.digest(key, b"key of " + name, _HASHES[mechanism])  # no client key is known that has this hash
        return ScramCredential(salt=salt, iterations=iterations, stored_key=false_key, server_key=false_key)


# -- a login -------------------------------------------------------------------------------------------------------------------


class Login(NamedTuple):
    """Who has logged in. `last` is what the server still sends with it; `until_ms`, since the epoch, is when a token expires."""

    user: str
    last: bytes = b""
    until_ms: int | None = None


def scram_exchange(
    mechanism: ScramMechanism, users: Users, new_nonce: Callable[[], str], first: bytes
) -> Generator[bytes, bytes, Login]:
    """A login, begun with the client's first message: yields the server's, and resumes with the client's last. Raises
    SaslAuthenticationFailed."""
    begun = _parsed(_CLIENT_FIRST, first, mechanism)
    user = _unescaped(begun["user"])
    if begun["authorization"] is not None and _unescaped(begun["authorization"]) != user:
        raise other_authorization_id(user)
    _, credential, is_known = users.find(user, mechanism)
    nonce = begun["nonce"] + new_nonce()
    salt = base64.b64encode(credential.salt).decode()
    server_first = f"r={nonce},s={salt},i={credential.iterations}"
    ended = _parsed(_CLIENT_FINAL, (yield server_first.encode()), mechanism, user)
    authenticated = f"{begun['bare']},{server_first},{ended['signed']}".encode()
    is_proven = _is_proof(mechanism, credential, authenticated, base64.b64decode(ended["proof"]))
    # All three are looked at before any of them refuses: how long it takes does not tell which it was.
    is_bound = base64.b64decode(ended["binding"]) == begun["gs2"].encode()
    if not (ended["nonce"] in (nonce, begun["nonce"] + nonce) and is_bound and is_proven):
        raise _refused(mechanism, "credentials" if is_known else "unknown_user", user)
    signature = hmac.digest(credential.server_key, authenticated, _HASHES[mechanism])
    return Login(user, b"v=" + base64.b64encode(signature))


def log_in(mechanism: ScramMechanism, user: str, password: str, nonce: str) -> Generator[bytes, bytes, None]:
    """The client's side, of a broker that connects to another: yields its messages, and resumes with the server's. Raises
    SaslAuthenticationFailed also if the server does not show that it knows the user."""
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    answer = _parsed(_SERVER_FIRST, (yield f"n,,{bare}".encode()), mechanism, user)
    iterations = int(answer["iterations"])
    if not answer["nonce"].startswith(nonce) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise _refused(mechanism, "server", user)
    name = _HASHES[mechanism]
    salted = salted_password(mechanism, password, base64.b64decode(answer["salt"]), iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    signed = f"c=biws,r={answer['nonce']}"
    authenticated = f"{bare},{answer[0]},{signed}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), authenticated, name)
    proof = base64.b64encode(bytes(map(int.__xor__, client_key, signature))).decode()
    last = yield f"{signed},p={proof}".encode()
    shown = hmac.digest(hmac.digest(salted, b"Server Key", name), authenticated, name)
    if not hmac.compare_digest(last, b"v=" + base64.b64encode(shown)):
        raise _refused(mechanism, "server", user)


def _is_proof(mechanism: ScramMechanism, credential: ScramCredential, authenticated: bytes, proof: bytes) -> bool:
    name = _HASHES[mechanism]
    signature = hmac.digest(credential.stored_key, authenticated, name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(map(int.__xor__, proof, signature))
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)


def _parsed(form: re.Pattern[str], message: bytes, mechanism: ScramMechanism, user: str = "") -> re.Match[str]:
    try:
        matched = form.fullmatch(message.decode()) if len(message) <= _MESSAGE_BYTES_MAX else None
    except UnicodeDecodeError:
        matched = None
    if matched is None:
        raise _refused(mechanism, "malformed", user)
    return matched


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _refused(mechanism: ScramMechanism, reason: str, user: str) -> SaslAuthenticationFailed:
    """Kafka's words, the same for every reason."""
    name = mechanism.name.replace("_", "-")
    text = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {name}"
    return SaslAuthenticationFailed(text, reason=reason, user=user)


def other_authorization_id(user: str) -> SaslAuthenticationFailed:
    """Nobody may log in for somebody else."""
    text = "Authentication failed: Client requested an authorization id that is different from username"
    return SaslAuthenticationFailed(text, reason="authorization_id", user=user)


# The login of one connection, as a state machine without I/O: which request may come next, and who the peer is in the end.


Wait = Callable[[Callable[[Any, BaseException | None], None]], None]  # begins it; the callback gets the result or the error
Exchange = Generator[bytes | Wait, Any, Login]
Mechanism = Callable[[bytes], Exchange]  # of the client's first token

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *NAMES, OAUTHBEARER)

_TOKENS_MAX = 4  # no mechanism here needs more than three


class LoginState:
    """`mechanisms` are those of the listener, by name. `earlier`, on a connection that logs in again, are mechanism and login so
    far: neither may change."""

    def __init__(self, mechanisms: Mapping[str, Mechanism], earlier: tuple[str, Login] | None = None) -> None:
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

    def take(self, token: bytes) -> bytes | Wait | Login:
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

    def resume(self, result: Any) -> bytes | Wait | Login:
        """What the mechanism waited for is there."""
        assert self._exchange is not None, "it was begun before it waited"
        return self._advance(partial(self._exchange.send, result))

    def _advance(self, go_on: Callable[[], bytes | Wait]) -> bytes | Wait | Login:
        try:
            return go_on()
        except StopIteration as ended:
            login: Login = ended.value
        if self._earlier is not None and self._earlier[1].user != login.user:
            before = self._earlier[1].user
            text = f"Cannot change principals during re-authentication from User:{before}: User:{login.user}"
            raise SaslAuthenticationFailed(text, reason="other_principal", user=before)
        return login


def plain(users: Users, in_thread: Callable[[Callable[[], bool]], Wait], first: bytes) -> Exchange:
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
        raise other_authorization_id(user)
    mechanism, credential, is_known = users.find(user, *NAMES.values())
    is_right = yield in_thread(partial(is_password, credential, mechanism, password))
    if not (is_right and is_known):
        text = "Authentication failed: Invalid username or password"
        raise SaslAuthenticationFailed(text, reason="credentials" if is_known else "unknown_user", user=user)
    return Login(user)


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
