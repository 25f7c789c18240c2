"""Users and their SCRAM credentials: described, added and removed by clients, and read from a file at a start.

Also what is answered to a login where there is none: on a listener that requires no login, or by a client that has logged in, for
good. Elsewhere logins do not get here (`network/gate.py`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from logbus_broker import errors
from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster.security_store import Edit
from logbus_broker.protocol import codec, framing
from logbus_broker.protocol.api import ApiKey
from logbus_broker.security.state import ScramCredential, ScramMechanism, SecurityState

_SALT_BYTES_MAX = 1_024
_HASH_BYTES = {ScramMechanism.SCRAM_SHA_256: 32, ScramMechanism.SCRAM_SHA_512: 64}
_NOBODY_KEY_BYTES = 32
_OWN_USERS_MAX = 1_000  # users `NAME/...` of one NAME, who may make them without being an administrator


def handle_sasl_handshake(request: framing.Request, context: handler.Context) -> handler.Parts:
    codec.decode_request(request.api_key, request.version, request.body)
    answer = codec.response_class(ApiKey.SASL_HANDSHAKE)(error_code=error_codes.code_of(_no_login(request)))
    return [codec.encode_response(answer, request.version)]


def handle_sasl_authenticate(request: framing.Request, context: handler.Context) -> handler.Parts:
    codec.decode_request(request.api_key, request.version, request.body)
    answer = codec.response_class(ApiKey.SASL_AUTHENTICATE)()
    error_codes.refuse(answer, _no_login(request))
    return [codec.encode_response(answer, request.version)]


def _no_login(request: framing.Request) -> errors.IllegalSaslState:
    return errors.IllegalSaslState(f"listener {request.origin.listener} expects no login now", reason="state")


@handler.answered_in_slices
def handle_describe_user_scram_credentials(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    result = response.DescribeUserScramCredentialsResult
    answer = response(error_message=None)
    with error_codes.refusing(answer):
        caller.check(authorization.CLUSTER)
    if answer.error_code:
        return [codec.encode_response(answer, version)]
    by_user: dict[str, list[tuple[ScramMechanism, ScramCredential]]] = {}
    for (user, mechanism), credential in sorted(context.security.state.credentials.items()):
        by_user.setdefault(user, []).append((mechanism, credential))
        yield None
    requested = Counter(user.name for user in message.users) if message.users else Counter(by_user.keys())
    rows = answer.results
    for user, count in requested.items():
        row = result(user=user, error_message=None)
        with error_codes.refusing(row):
            if count > 1:
                raise errors.DuplicateResource(f"user {user!r} is named more than once in one request: name it once")
            if user not in by_user:
                raise errors.ResourceNotFound(f"there is no SCRAM credential of a user {user!r}")
            row.credential_infos = [
                result.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                for mechanism, credential in by_user[user]
            ]
        rows.append(row)
        yield None
    return (yield from handler.encode_in_slices(answer, version, rows))


@handler.answered_in_turn
def handle_alter_user_scram_credentials(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """All credentials of a user that the request names are changed, or none."""
    response = codec.response_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    refused: dict[str, errors.BrokerError] = {}
    outcomes: dict[str, errors.BrokerError | None] = {}
    for user, _, upsertions in _by_user(message):
        try:
            caller.check_user(f"User:{user}", f"change the credentials of user {user}", gains=bool(upsertions))
        except errors.AuthorizationError as error:
            refused[user] = error
        yield None

    def edit(state: SecurityState) -> SecurityState:
        # May be called again with a newer state: what it says about each user is of the state that is stored.
        credentials: dict[Any, ScramCredential | None] = dict(state.credentials)
        outcomes.clear()
        for user, deletions, upsertions in _by_user(message):
            outcomes[user] = refused.get(user)
            try:
                if user not in refused:
                    _refuse_too_many(user, credentials, upsertions)
                    credentials.update(_changed(user, credentials, deletions, upsertions))
            except errors.RequestError as error:
                outcomes[user] = error
        left = {key: credential for key, credential in credentials.items() if credential is not None}
        return state if left == state.credentials else with_credentials(state, left)

    try:
        yield from context.security.change(edit)
    except errors.BrokerError as error:
        outcomes = {user: refusal or error for user, refusal in outcomes.items()}
    rows = []
    for user, outcome in outcomes.items():
        row = response.AlterUserScramCredentialsResult(user=user, error_message=None)
        if outcome is not None:
            error_codes.refuse(row, outcome)
        rows.append(row)
    return (yield from handler.encode_in_slices(response(results=rows), version, rows))


def _by_user(message: Any) -> Iterator[tuple[str, list[Any], list[Any]]]:
    deletions = handler.by_name(message.deletions, lambda deletion: deletion.name)
    upsertions = handler.by_name(message.upsertions, lambda upsertion: upsertion.name)
    for user in dict.fromkeys((*deletions, *upsertions)):
        yield user, deletions.get(user, []), upsertions.get(user, [])


def _refuse_too_many(user: str, credentials: Mapping[Any, Any], upsertions: list[Any]) -> None:
    owner, has_owner, _ = user.partition("/")
    if has_owner and upsertions:
        users = {name for name, _ in credentials if name.startswith(f"{owner}/")}
        if user not in users and len(users) >= _OWN_USERS_MAX:
            raise errors.UnacceptableCredential(f"there are {len(users)} users {owner}/...: delete those that nobody needs")


def _changed(
    user: str, credentials: Mapping[Any, Any], deletions: list[Any], upsertions: list[Any]
) -> dict[tuple[str, ScramMechanism], ScramCredential | None]:
    """The user's new credentials; None where one is deleted. Raises a RequestError."""
    if not user:
        raise errors.UnacceptableCredential("Username must not be empty")
    changes: dict[tuple[str, ScramMechanism], ScramCredential | None] = {}
    for count, row in enumerate((*deletions, *upsertions)):
        if row.mechanism not in tuple(ScramMechanism):
            raise errors.UnsupportedSaslMechanism("Unknown SCRAM mechanism", reason="mechanism")
        key = user, ScramMechanism(row.mechanism)
        if count < len(deletions) and credentials.get(key) is None:
            raise errors.ResourceNotFound("Attempt to delete a user credential that does not exist")
        if key in changes:
            raise errors.DuplicateResource("A user credential cannot be altered twice in the same request")
        changes[key] = None
    for row in upsertions:
        changes[user, ScramMechanism(row.mechanism)] = _credential(row)
    return changes


def _credential(row: Any) -> ScramCredential:
    from logbus_broker.security import scram  # not needed by a broker without users

    mechanism = ScramMechanism(row.mechanism)
    if row.iterations < scram.ITERATIONS_MIN:
        raise errors.UnacceptableCredential(f"Too few iterations: at least {scram.ITERATIONS_MIN}")
    if row.iterations > scram.ITERATIONS_MAX:
        raise errors.UnacceptableCredential(f"Too many iterations: at most {scram.ITERATIONS_MAX}")
    if not 0 < len(row.salt) <= _SALT_BYTES_MAX or len(row.salted_password) != _HASH_BYTES[mechanism]:
        raise errors.UnacceptableCredential(
            f"a salt of {len(row.salt)} and a SaltedPassword of {len(row.salted_password)} bytes: they have 1 to "
            f"{_SALT_BYTES_MAX} and {_HASH_BYTES[mechanism]}"
        )
    return scram.credential_of(mechanism, row.salted_password, row.salt, row.iterations)


def with_credentials(state: SecurityState, credentials: Mapping[tuple[str, ScramMechanism], ScramCredential]) -> SecurityState:
    """The state with these in place of its credentials."""
    return replace(state, credentials=credentials, nobody_key=state.nobody_key or os.urandom(_NOBODY_KEY_BYTES))


def read_users_file(path: Path, setting: str = "logbus.users.file") -> dict[str, str]:
    """Passwords by user from the file that the setting names: lines NAME=PASSWORD, `#` begins a comment. StartupError
    says what to do about one that cannot be read, or that others can read."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise errors.StartupError(f"{setting}: others may read the passwords in {path}: chmod 600 {path}")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.StartupError(f"{setting}: cannot read {path}: {error}") from None
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        user, separator, password = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (separator and user.strip() and password):  # the line itself is not shown: it may be a password
            raise errors.StartupError(f"{setting}: {path}, line {number}: expected NAME=PASSWORD")
        passwords[user.strip()] = password
    return passwords


def add_users(passwords: Mapping[str, str]) -> Edit:
    """Gives each user that has no credential one for each mechanism. Who has one keeps it: the password may have been changed."""

    def edit(state: SecurityState) -> SecurityState:
        from logbus_broker.security import scram

        existing = {user for user, _ in state.credentials}
        added = {
            (user, mechanism): scram.credential_of_password(mechanism, password, os.urandom(scram.SALT_BYTES))
            for user, password in passwords.items()
            if user not in existing
            for mechanism in ScramMechanism
        }
        return with_credentials(state, {**state.credentials, **added}) if added else state

    return edit
