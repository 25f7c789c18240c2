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
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from logbus import errors
from logbus.kafka import acls
from logbus.kafka.client import Client
from logbus.kafka.exact_reader import CONSUMER_CONFIG

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


# librdkafka asks for the coordinator of the group that it insists on.
GROUP_OF_READERS = acls.Resource(kind=ResourceType.GROUP, name=CONSUMER_CONFIG["group.id"])


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


class RangeReaders:
    """Users of the client's own, `NAME/...`, who may read ranges of offsets and nothing else: on our broker. There its user NAME
    need not be an administrator for that."""

    def __init__(self, client: Client) -> None:
        self._users = ScramUsers(client)
        self._acls = acls.Acls(client)

    def add(self, user: str, password: str, mechanism: str, ranges: Sequence[acls.AclRange]) -> None:
        """At least one range, all of one topic. `UserError` where there are no such users."""
        principal, topic = f"User:{user}", ranges[0].topic
        self._acls.add([acls.reading(principal, allowed) for allowed in ranges])
        with suppress(errors.AccessDenied):  # the client may not itself; then its readers ask for the group's coordinator in vain
            self._acls.add([acls.allowing(principal, AclOperation.DESCRIBE, GROUP_OF_READERS)])
        if not self._acls.matching(acls.about(principal, topic)):
            # Another Kafka, where this client may do everything: it keeps such ACLs, and they are about no topic.
            self._acls.delete_of(principal)
            raise errors.UserError("this Kafka has no ACLs for ranges of offsets")
        self._users.set_password(user, password, [mechanism])

    def delete(self, user: str, mechanism: str) -> None:
        """Whatever of it is there. What it has open is refused from then on."""
        self._acls.delete_of(f"User:{user}")
        self._users.forget(user, mechanism)


def unknown_user(user: str) -> errors.UserError:
    return errors.UserError(f"there is no user {user!r} who logs in by SCRAM: `logbus user ls` lists those there are")
