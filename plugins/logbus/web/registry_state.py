"""What a registry knows: subjects with their versions, ids, levels and modes; made from the records of `_schemas`, which are in
Confluent's own layout, in their order.

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

Pure: no I/O, no clock, no threads (registry_store.py reads the topic and holds the lock). The same records give the same state,
in every registry and after every restart.

The writers' fence. Each registry that begins to write puts a NOOP with the header `logbus_fence` into the topic, and the offset
of that record is its number: all that it writes has the number in the header `logbus_writer`. The highest number so far is the
writer's. A record with a lower one came from a registry that was replaced while its record was on the way: it is void, in every
reader alike, because all see the same order. What it would have replaced has to be written again before compaction makes the void
record the only one of its key: `repairs` lists that. Records without the header are Confluent's: they count, and the offset of
the last one is kept, since nothing fences that registry.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from logbus.web.schema_text import SchemaReference, SchemaText, SchemaType, compact


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


# What a registry knows: subjects with their versions, ids, levels and modes; made from the records of `_schemas` in their
# order.


FENCE, WRITER = "logbus_fence", "logbus_writer"
LEVEL_DEFAULT = "BACKWARD"
MODE_DEFAULT = "READWRITE"
NOBODY = -1  # as a writer's number
FIRST_ID = 1

Entry = tuple[bytes, bytes | None]  # key and value of a record


class RegistryState:
    """`writer` is the number of the registry that may write, `foreign_offset` the last record of another program."""

    def __init__(self) -> None:
        self.writer = NOBODY
        self.foreign_offset = NOBODY
        self.highest_id = 0
        self._subjects: dict[str, dict[int, SchemaVersion]] = {}
        self._of_id: dict[int, dict[tuple[str, int], SchemaVersion]] = defaultdict(dict)
        self._ids: dict[SchemaText, int] = {}
        self._settings: dict[RegistryKey, Mapping[str, Any]] = {}
        self._voided: dict[RegistryKey, None] = {}  # in the order of the records

    # Records.

    def apply(self, offset: int, key: bytes | None, value: bytes | None, headers: Mapping[str, bytes]) -> bool:
        """Takes the next record; whether it counts. `UnreadableRecord` if it is not one of a registry."""
        if FENCE in headers:
            self.writer = max(self.writer, offset)
        elif WRITER in headers:
            number = int(headers[WRITER])
            if number < self.writer:
                self._voided[decoded_key(key)] = None
                return False
            self.writer = number
        else:
            self.foreign_offset = offset
        registry_key = decoded_key(key)
        self._voided.pop(registry_key, None)
        APPLIED[registry_key.kind](self, registry_key, value)
        return True

    def _apply_schema(self, key: RegistryKey, value: bytes | None) -> None:
        if value is None:
            self._forget(str(key.subject), key.version or 0)
        else:
            self._keep(decoded_version(value))

    def _apply_deletion(self, key: RegistryKey, value: bytes | None) -> None:
        last = int(decoded_values(value).get("version") or 0)
        for version in list(self._subjects.get(str(key.subject), {}).values()):
            if version.version <= last:
                self._keep(replace(version, is_deleted=True))

    def _apply_clearing(self, key: RegistryKey, value: bytes | None) -> None:
        if value is not None:
            for number in list(self._subjects.get(str(key.subject), {})):
                self._forget(str(key.subject), number)

    def _apply_setting(self, key: RegistryKey, value: bytes | None) -> None:
        if value is None:
            self._settings.pop(key, None)
        else:
            self._settings[key] = decoded_values(value)

    def _apply_noop(self, key: RegistryKey, value: bytes | None) -> None:
        if value:
            self.highest_id = max(self.highest_id, int(decoded_values(value).get("highestId") or 0))

    def _keep(self, version: SchemaVersion) -> None:
        self._forget(version.subject, version.version)
        self._subjects.setdefault(version.subject, {})[version.version] = version
        self._of_id[version.schema_id][version.subject, version.version] = version
        self._ids.setdefault(version.schema, version.schema_id)
        self.highest_id = max(self.highest_id, version.schema_id)

    def _forget(self, subject: str, number: int) -> None:
        former = self._subjects.get(subject, {}).pop(number, None)
        if former is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        of_id = self._of_id[former.schema_id]
        del of_id[subject, number]
        if not of_id:
            del self._of_id[former.schema_id]
            if self._ids.get(former.schema) == former.schema_id:
                del self._ids[former.schema]

    # What has to be written.

    def noop(self) -> Entry:
        return NOOP_KEY.encode(), compact({"magic": 0, "highestId": self.highest_id}).encode()

    def repairs(self) -> list[Entry]:
        """What void records have hidden, or would hide once their keys are compacted."""
        return [entry for key in self._voided for entry in self._repair(key)]

    def _repair(self, key: RegistryKey) -> Iterator[Entry]:
        if key.kind is KeyType.NOOP:
            yield self.noop()
        elif key.kind is KeyType.SCHEMA:
            current = self._subjects.get(str(key.subject), {}).get(key.version or 0)
            yield key.encode(), None if current is None else current.encode()
        elif key.kind in (KeyType.CONFIG, KeyType.MODE):
            setting = self._settings.get(key)
            yield key.encode(), None if setting is None else compact(setting).encode()
        else:  # it would delete versions: they are written again, each as it is
            yield key.encode(), None
            for version in self.versions(str(key.subject), with_deleted=True):
                yield version.key.encode(), version.encode()

    # Questions.

    def subjects(self, *, with_deleted: bool = False) -> list[str]:
        return sorted(name for name in self._subjects if self.versions(name, with_deleted=with_deleted))

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[SchemaVersion]:
        """In their order."""
        numbered = self._subjects.get(subject, {})
        return [numbered[number] for number in sorted(numbered) if with_deleted or not numbered[number].is_deleted]

    def of_id(self, schema_id: int) -> Sequence[SchemaVersion]:
        """All versions with this id, deleted ones too."""
        return list(self._of_id.get(schema_id, {}).values())

    def of_guid(self, guid: str) -> SchemaVersion | None:
        return next((version for each in self._of_id.values() for version in each.values() if version.guid == guid), None)

    def id_of(self, schema: SchemaText) -> int | None:
        return self._ids.get(schema)

    def referring(self, subject: str, version: int) -> list[SchemaVersion]:
        """The versions, not deleted ones, that refer to this one."""
        return [
            each
            for name in self._subjects
            for each in self.versions(name)
            if any((reference.subject, reference.version) == (subject, version) for reference in each.schema.references)
        ]

    def setting(self, kind: KeyType, subject: str | None) -> Mapping[str, Any] | None:
        """As it was stored; None where the subject, or the registry as a whole, has none of its own."""
        return self._settings.get(RegistryKey(kind=kind, subject=subject))

    def level(self, subject: str | None) -> str:
        """The level of compatibility in force."""
        own = self.setting(KeyType.CONFIG, subject) or self.setting(KeyType.CONFIG, None) or {}
        return str(own.get("compatibilityLevel") or LEVEL_DEFAULT)

    def mode(self, subject: str | None) -> str:
        """The mode in force. READONLY_OVERRIDE is for all, whatever subjects have."""
        of_all = str((self.setting(KeyType.MODE, None) or {}).get("mode") or MODE_DEFAULT)
        own = self.setting(KeyType.MODE, subject) or {}
        return of_all if of_all == "READONLY_OVERRIDE" else str(own.get("mode") or of_all)


APPLIED = {
    KeyType.SCHEMA: RegistryState._apply_schema,
    KeyType.DELETE_SUBJECT: RegistryState._apply_deletion,
    KeyType.CLEAR_SUBJECT: RegistryState._apply_clearing,
    KeyType.CONFIG: RegistryState._apply_setting,
    KeyType.MODE: RegistryState._apply_setting,
    KeyType.NOOP: RegistryState._apply_noop,
}
