"""OAUTHBEARER (RFC 7628): tokens that an issuer has signed, checked with the keys that it publishes (JWKS).

Which signatures count is ours to say, and never the token's: RS256 and ES256. So nobody can sign with a public key as if it were
a shared secret, or not at all. A token needs an end, a subject, our audience and our issuer.

The keys are fetched by a background thread and kept. A token with a key id that is not among them may be one of a new key, and
has them fetched again, but at most once a minute: anybody can invent key ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from logbus_broker.errors import SaslAuthenticationFailed
from logbus_broker.security import sasl

ALGORITHMS = ("RS256", "ES256")
_FETCH_AGAIN_SECONDS = 60.0
_TOKEN_BYTES_MAX = 64 * 1024  # what identity providers issue has one or two
_END_MS_MAX = (1 << 63) - 1  # an answer says how long that is
_INVALID = json.dumps({"status": "invalid_token"}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say; `skew_seconds` is how much clocks may disagree."""

    issuer: str
    audiences: tuple[str, ...]
    subject_claim: str
    skew_seconds: int


class IssuerKeys:
    """The issuer's public keys, by key id. `fetch` begins to read them: its callback gets the text or an error. All methods run
    on the loop's thread."""

    def __init__(self, fetch: sasl.Wait, monotonic: Callable[[], float], refresh_seconds: float) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._refresh_seconds = refresh_seconds
        self._keys: dict[str | None, Any] = {}
        self._fetched_at: float | None = None
        self._waiting: list[Callable[[Any, BaseException | None], None]] = []
        self._error: BaseException | None = None

    def is_worth_fetching(self, key_id: str | None) -> bool:
        """Whether the keys at hand are too old, or lack this one and may be asked for again."""
        if self._waiting or self._fetched_at is None:
            return True
        age = self._monotonic() - self._fetched_at
        lacks_it = key_id not in self._keys or self._error is not None
        return age >= (_FETCH_AGAIN_SECONDS if lacks_it else self._refresh_seconds)

    def fetch(self, outcome: Callable[[Any, BaseException | None], None]) -> None:
        """Read them again; `outcome` is called once that is done, also if it failed: then the keys are those of before."""
        self._waiting.append(outcome)
        if len(self._waiting) == 1:
            self._fetched_at = self._monotonic()
            self._fetch(self._take)

    def _take(self, text: Any, error: BaseException | None) -> None:
        try:
            if error is not None:
                raise error
            keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(json.loads(text)).keys}
            self._keys, self._error = keys, None
        except Exception as caught:
            self._error = caught
        waiting, self._waiting = self._waiting, []
        for outcome in waiting:
            outcome(None, None)

    def find(self, key_id: str | None) -> Any:
        """A key; LookupError says why there is none."""
        if key_id in self._keys:
            return self._keys[key_id]
        if self._error is not None:
            raise LookupError(f"the keys of the issuer cannot be read: {self._error}")
        raise LookupError(f"the issuer has no key {key_id!r}")


def exchange(rules: TokenRules, keys: IssuerKeys, first: bytes) -> sasl.Exchange:
    """A login, begun with the client's first message. As the standard has it, a refused token is answered, and the login fails
    after the client's empty answer to that."""
    authorization_id, token = _read(first)
    user = ""
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
        if keys.is_worth_fetching(key_id):
            yield keys.fetch
        claims = _claims(token, keys.find(key_id), rules)
        user = claims[rules.subject_claim]
        if authorization_id not in ("", user):
            raise sasl.other_authorization_id(user)
        return sasl.Login(user, until_ms=min(int(claims["exp"]) * 1000, _END_MS_MAX))
    except (jwt.InvalidTokenError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # The last two: an end at infinity, and brackets by the thousand, which older versions of PyJWT let through.
        refusal = _refused("token", user)
        refusal.__cause__ = error
    yield _INVALID
    raise refusal


def _read(first: bytes) -> tuple[str, str]:
    """The authorization id, empty if there is none, and the token."""
    head, *pairs = first.split(b"\x01") if len(first) <= _TOKEN_BYTES_MAX else [b""]
    gs2 = head.decode(errors="replace").split(",")
    fields = dict(pair.partition(b"=")[::2] for pair in pairs)
    scheme, _, token = fields.get(b"auth", b"").partition(b" ")
    if len(gs2) != 3 or gs2[0] != "n" or gs2[2] or pairs[-2:] != [b"", b""] or scheme.lower() != b"bearer":
        raise _refused("malformed")
    return gs2[1].removeprefix("a="), token.decode("ascii", "replace").strip()


def _claims(token: str, key: Any, rules: TokenRules) -> Mapping[str, Any]:
    claims: Mapping[str, Any] = jwt.decode(
        token,
        key.key,
        algorithms=[name for name in ALGORITHMS if name == key.algorithm_name],
        audience=list(rules.audiences),
        issuer=rules.issuer,
        leeway=rules.skew_seconds,
        options={"require": ["exp", "iss", "aud", rules.subject_claim]},
    )
    if not isinstance(claims[rules.subject_claim], str) or not claims[rules.subject_claim]:
        raise ValueError(f"its {rules.subject_claim} is not a name")
    return claims


def _refused(reason: str, user: str = "") -> SaslAuthenticationFailed:
    text = "Authentication failed: the token is not accepted"
    return SaslAuthenticationFailed(text, reason=reason, user=user)
