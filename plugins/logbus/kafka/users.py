"""Users of a cluster that log in by SCRAM: which there are, and their passwords.

A password leaves this machine salted and hashed as SCRAM prescribes (RFC 5802); the broker keeps keys from which neither it nor a
login can be made. Users who log in by a certificate or a token are not kept by the cluster, so they are not listed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from logbus import errors
from logbus.kafka.client import Client

# In the words of sasl.mechanism. A user has both by default: a client chooses.
MECHANISMS: Mapping[str, ScramMechanism] = {
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
}
ITERATIONS = 4096  # Kafka's; a password of `random_password` cannot be guessed at any number of them
PASSWORD_BYTES = 24  # 192 bits


def random_password() -> str:
    """Letters, digits, `-` and `_`: in no file and no shell need any of them be quoted."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


class _NotThere(Exception):
    """There is no such credential."""


class ScramUsers:
    """Those of the client's cluster. Listing needs Describe on the cluster, changing Alter."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def mechanisms(self) -> dict[str, list[str]]:
        """By which mechanisms each user can log in, sorted by name."""
        question = self.client.admin().describe_user_scram_credentials
        answers = self.client.ask(lambda: {"": question(None, **self.client.limits())})
        names = {mechanism: name for name, mechanism in MECHANISMS.items()}
        return {
            user: [names[info.mechanism] for info in described.scram_credential_infos if info.mechanism in names]
            for user, described in sorted(answers[""].items())
        }

    def set_password(self, user: str, password: str, mechanisms: Sequence[str] = tuple(MECHANISMS)) -> None:
        """Makes the user if there is none. Connections that have logged in stay; new ones need this password."""
        for name in mechanisms:  # a request may name a user once
            info = ScramCredentialInfo(MECHANISMS[name], ITERATIONS)
            self._alter(user, UserScramCredentialUpsertion(user, info, password.encode()))

    def delete(self, user: str) -> None:
        """All credentials; `UserError` if there are none. Connections that have logged in stay, as in Kafka."""
        mechanisms = self.mechanisms().get(user)
        if not mechanisms:
            raise unknown_user(user)
        for name in mechanisms:
            self._alter(user, UserScramCredentialDeletion(user, MECHANISMS[name]))

    def forget(self, user: str, mechanism: str) -> None:
        """Deletes the credential of this mechanism, if it is there."""
        with suppress(_NotThere):
            self._alter(user, UserScramCredentialDeletion(user, MECHANISMS[mechanism]), _NotThere())

    def _alter(self, user: str, alteration: UserScramCredentialAlteration, unknown: Exception | None = None) -> None:
        question = self.client.admin().alter_user_scram_credentials
        explained = {KafkaError.RESOURCE_NOT_FOUND: unknown or unknown_user(user)}
        self.client.ask(lambda: question([alteration], **self.client.limits()), user, needs="Alter", explained=explained)


def unknown_user(user: str) -> errors.UserError:
    return errors.UserError(f"there is no user {user!r} who logs in by SCRAM: `logbus user ls` lists those there are")
