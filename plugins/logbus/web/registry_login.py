"""Who may ask the registry: the users of the Kafka cluster, by the passwords and ACLs that they have there.

A request brings a name and a password (HTTP's basic authentication). The registry logs in to the broker with them and asks what
that user may do with the topic `_schemas`: Read lets him look up schemas, Write lets him register and delete. So there is one
list of users and one of rights, and the registry keeps neither. An answer is kept for a minute: for
so long a user who has been removed still gets in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from logbus import errors
from logbus.kafka.client import Client
from logbus.kafka.client_config import of_user
from logbus.kafka.topics import allowed_operations

KEPT_SECONDS = 60.0
KEPT_MAX = 10_000  # logins that are remembered
ASKED_AT_ONCE_MAX = 4  # logins at the broker: a stranger who tries passwords gets a share of it and no more
ANSWER_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRights:
    """What a user may do. `refusal` is why he may not even log in."""

    operations: frozenset[str] = frozenset()
    refusal: str = ""


class RegistryLogins:
    """Asks the broker, as each user. `config` is how to reach it."""

    def __init__(self, config: Mapping[str, Any], topic: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._topic = topic
        self._clock = clock
        self._salt = os.urandom(16)
        self.asking = threading.BoundedSemaphore(ASKED_AT_ONCE_MAX)
        self.answer_seconds_max = ANSWER_SECONDS_MAX
        self._kept: dict[bytes, tuple[float, RegistryRights]] = {}

    def rights(self, authorization: str) -> RegistryRights:
        """Of the user whom the header `Authorization` names. `BrokerUnavailable` while nobody can be asked."""
        credentials = _credentials(authorization)
        if credentials is None:
            return RegistryRights(refusal="log in with a user and a password of the Kafka cluster (basic authentication)")
        key = hashlib.blake2b("\0".join(credentials).encode(), key=self._salt).digest()
        kept_until, rights = self._kept.get(key, (0.0, RegistryRights()))
        if self._clock() < kept_until:
            return rights
        if not self.asking.acquire(timeout=self.answer_seconds_max):
            raise errors.BrokerUnavailable("too many others log in at the moment: try again")
        try:
            kept_until, rights = self._kept.get(key, (0.0, RegistryRights()))
            if self._clock() < kept_until:  # asked meanwhile: many clients of a user begin at the same time
                return rights
            rights = self._ask(*credentials)
        finally:
            self.asking.release()
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[key] = self._clock() + KEPT_SECONDS, rights
        return rights

    def _ask(self, user: str, password: str) -> RegistryRights:
        client = Client(of_user(self._config, user, password), timeout_seconds=self.answer_seconds_max)
        try:
            client.ask(client.ask_cluster)  # needs no right, so what is refused here is the login
        except errors.AccessDenied:
            return RegistryRights(refusal=f"the user {user} cannot log in to the Kafka cluster: name or password is wrong")
        try:
            described = client.ask(lambda: client.ask_topics([self._topic], with_operations=True), self._topic)[self._topic]
        except errors.AccessDenied:
            return RegistryRights()
        return RegistryRights(operations=allowed_operations(described) or frozenset())


def _credentials(authorization: str) -> tuple[str, str] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    # A NUL would end the name or the password for the client library.
    return (user, password) if user and password and "\0" not in user + password else None
