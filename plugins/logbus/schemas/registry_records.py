"""The records of the topic `_schemas`: what a registry remembers, in Confluent's own layout.

Keys and values are JSON. A key's bytes decide what compaction replaces, so the order of its members is Confluent's; values are
read whatever their order. A Confluent registry can continue on a topic that was written by this one, and the other way round.

    {"keytype":"SCHEMA","subject":S,"version":V,"magic":1}   one version, `deleted` if softly; no value: deleted for good
    {"keytype":"DELETE_SUBJECT","subject":S,"magic":0}       its versions up to `version` are deleted softly
    {"keytype":"CLEAR_SUBJECT","subject":S,"magic":0}        its versions are deleted for good
    {"keytype":"CONFIG","subject":S or null,"magic":0}       a level of compatibility, of a subject or of all; no value: none
    {"keytype":"MODE","subject":S or null,"magic":0}         likewise
    {"keytype":"NOOP","magic":0}                             says only how far the topic reaches

Readers skip a NOOP's value, so ours holds the highest id ever given out: an id is not given out again after its schema was
deleted for good and its record compacted away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logbus.schemas.schema_text import SchemaReference, SchemaText, SchemaType, compact


class KeyType(StrEnum):
    """What a record is about."""

    SCHEMA = "SCHEMA"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    CONFIG = "CONFIG"
    MODE = "MODE"
    NOOP = "NOOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryKey:
    """A record's key. `subject` is None where something holds for all of them."""

    kind: KeyType
    subject: str | None = None
    version: int | None = None

    def encode(self) -> bytes:
        key: dict[str, Any] = {"keytype": self.kind.value}
        if self.kind is not KeyType.NOOP:
            key["subject"] = self.subject
        if self.version is not None:
            key["version"] = self.version
        return compact(key | {"magic": int(self.kind is KeyType.SCHEMA)}).encode()


NOOP_KEY = RegistryKey(kind=KeyType.NOOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version of a subject."""

    subject: str
    version: int
    schema_id: int
    guid: str
    schema: SchemaText
    is_deleted: bool = False

    def summary(self) -> dict[str, Any]:
        """As Confluent's answers have it."""
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.schema_id,
            "guid": self.guid,
            **self.schema.summary(),
        }

    @property
    def key(self) -> RegistryKey:
        return RegistryKey(kind=KeyType.SCHEMA, subject=self.subject, version=self.version)

    def encode(self) -> bytes:
        """Without the GUID: registries before Confluent's 8.0 refuse members that they do not know, and ours follows from the
        schema."""
        value = {"subject": self.subject, "version": self.version, "id": self.schema_id, **self.schema.summary()}
        return compact(value | {"deleted": self.is_deleted}).encode()


class UnreadableRecord(ValueError):
    """A record that is not in this layout."""


def decoded_key(key: bytes | None) -> RegistryKey:
    """`UnreadableRecord` for another program's key, or a kind of Confluent's that this registry does not have (contexts, say)."""
    members = _members(key)
    try:
        kind = KeyType(members["keytype"])
        version = int(members["version"]) if kind is KeyType.SCHEMA else None
        subject = None if members.get("subject") is None else str(members["subject"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(f"key {key!r}: {error!r}") from None
    return RegistryKey(kind=kind, subject=subject, version=version)


def decoded_version(value: bytes) -> SchemaVersion:
    """The value of a record of the kind SCHEMA."""
    members = _members(value)
    try:
        references = tuple(
            SchemaReference(name=str(each["name"]), subject=str(each["subject"]), version=int(each["version"]))
            for each in members.get("references") or ()
        )
        metadata = members.get("metadata")
        schema = SchemaText(
            kind=SchemaType(members.get("schemaType") or SchemaType.AVRO),
            text=str(members["schema"]),
            references=references,
            metadata=compact(metadata, is_sorted=True) if metadata else "",
        )
        return SchemaVersion(
            subject=str(members["subject"]),
            version=int(members["version"]),
            schema_id=int(members["id"]),
            guid=str(members.get("guid") or schema.guid),
            schema=schema,
            is_deleted=bool(members.get("deleted", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"value {value[:200]!r}: {error!r}") from None


def decoded_values(value: bytes | None) -> Mapping[str, Any]:
    """The members of any other record's value; none where there is no value."""
    return {} if value is None else _members(value)


def _members(text: bytes | None) -> Mapping[str, Any]:
    try:
        members = json.loads(text or b"")
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{(text or b'')[:200]!r}: {error}") from None
    if not isinstance(members, dict):
        raise UnreadableRecord(f"{(text or b'')[:200]!r} is not an object")
    return members
