"""What a schema registry decides: which id and version a schema gets, what may be deleted, what is compatible with what.

Same schema, same id, whatever the subject; an id is never given out twice, nor a version within a subject while anything of that
subject is left. Each answer to a change is given when its records count (registry_store.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from logbus.web import schema_text as refusals
from logbus.web.registry_state import FIRST_ID, Entry, KeyType, RegistryKey, RegistryState, SchemaVersion
from logbus.web.registry_store import RegistryStore
from logbus.web.schema_compatibility import LEVELS, EarlierSchema, problems_of
from logbus.web.schema_text import RegistryRefusal, ResolvedSchema, SchemaReference, SchemaText, checked, compact

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
LATEST = -1  # as a version
VERSION_MAX = 2**31 - 1
SCHEMA_BYTES_MAX = 750_000
RECORD_BYTES_MAX = 990_000  # a schema with its escapes in JSON, references and metadata: the client's message.max.bytes is 1 MB
REFERENCES_MAX = 1_000  # of one schema, with those of its references
REFERENCES_DEPTH_MAX = 100  # of references in each other: each is a call in a call


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOrder:
    """A schema that is to be registered or looked up. `schema_id` and `version` are chosen by the client, in the mode IMPORT."""

    schema: SchemaText
    normalize: bool = False
    schema_id: int | None = None
    version: int | None = None


class SchemaRegistry:
    """The decisions, on one store. Safe to use from several threads."""

    def __init__(self, store: RegistryStore) -> None:
        self.store = store

    # Look-ups.

    def version(self, subject: str, number: int, *, with_deleted: bool = False) -> SchemaVersion:
        with self.store.reading() as state:
            return _version(state, subject, number, with_deleted=with_deleted)

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[SchemaVersion]:
        with self.store.reading() as state:
            versions = state.versions(subject, with_deleted=with_deleted)
        if not versions:
            raise RegistryRefusal(refusals.SUBJECT_NOT_FOUND, subject=subject)
        return versions

    def of_id(self, schema_id: int) -> list[SchemaVersion]:
        with self.store.reading() as state:
            versions = state.of_id(schema_id)
        if not versions:
            raise RegistryRefusal(refusals.SCHEMA_NOT_FOUND, name=schema_id)
        return sorted(versions, key=lambda version: (version.subject, version.version))

    def of_guid(self, guid: str) -> SchemaVersion:
        with self.store.reading() as state:
            version = state.of_guid(guid)
        if version is None:
            raise RegistryRefusal(refusals.SCHEMA_NOT_FOUND, name=guid)
        return version

    def lookup(self, subject: str, order: SchemaOrder, *, with_deleted: bool = False) -> SchemaVersion:
        """The version of the subject that is this schema."""
        with self.store.reading() as state:
            versions = state.versions(subject, with_deleted=with_deleted)
            if not versions:
                raise RegistryRefusal(refusals.SUBJECT_NOT_FOUND, subject=subject)
            resolved = _resolved(state, order.schema)
        version = _same(versions, _checked(resolved, order.normalize))
        if version is None:
            raise RegistryRefusal(refusals.SCHEMA_NOT_FOUND, "Schema not found")
        return version

    def referring_ids(self, subject: str, number: int) -> list[int]:
        with self.store.reading() as state:
            version = _version(state, subject, number, with_deleted=True)
            return sorted({each.schema_id for each in state.referring(subject, version.version)})

    def resolved(self, version: SchemaVersion) -> ResolvedSchema:
        with self.store.reading() as state:
            return _resolved(state, version.schema)

    # Registration.

    def register(self, subject: str, order: SchemaOrder) -> SchemaVersion:
        """The subject's version that is this schema: the one that it has, or a new one."""
        if not subject.strip() or any(ord(letter) < 32 for letter in subject) or subject.startswith(":."):
            raise RegistryRefusal(refusals.INVALID_SUBJECT, subject=subject)
        with self.store.reading() as state:
            resolved = _resolved(state, order.schema)
        schema = _checked(resolved, order.normalize)
        if order.schema_id is None:
            with self.store.reading() as state:
                existing = _same(state.versions(subject), schema)
            if existing is not None:
                return existing
        with self.store.writing() as write:
            with self.store.reading() as state:
                existing = _same(state.versions(subject), schema)
                if existing is not None and order.schema_id in (None, existing.schema_id):
                    return existing
                if existing is not None and state.mode(subject) != "IMPORT":
                    raise RegistryRefusal(refusals.OTHER_ID, schema_id=existing.schema_id, new_id=order.schema_id)
                version = _new_version(state, subject, schema, order)
                level, earlier = state.level(subject), _earlier(state, subject)
                mode = state.mode(subject)
            if mode != "IMPORT":
                problems = problems_of(level, replace(resolved, schema=schema), earlier)
                if problems:
                    details = f"[{', '.join(problems)}]"
                    raise RegistryRefusal(refusals.INCOMPATIBLE, subject=subject, details=details)
            key, value = version.key.encode(), version.encode()
            if len(key) + len(value) > RECORD_BYTES_MAX:
                raise RegistryRefusal(refusals.SCHEMA_TOO_LARGE, length=len(key) + len(value), limit=RECORD_BYTES_MAX)
            write([(key, value)])
        return version

    def problems_with(self, subject: str, order: SchemaOrder, number: int | None) -> list[str]:
        """Why the schema is not compatible with a version, or (None) with those that the subject's level names."""
        with self.store.reading() as state:
            resolved = _resolved(state, order.schema)
            earlier = _earlier(state, subject)
            if number is not None and (earlier or number != LATEST):
                current = _version(state, subject, number)
                earlier = [EarlierSchema(version=current.version, resolved=_resolved(state, current.schema))]
            level = state.level(subject)
        return problems_of(level, replace(resolved, schema=_checked(resolved, order.normalize)), earlier)

    # Deletion.

    def delete_version(self, subject: str, number: int, *, permanent: bool = False) -> int:
        with self.store.writing() as write:
            with self.store.reading() as state:
                _require_writable(state, subject)
                # The latest is the last that is not deleted: asked twice, the one before it is deleted.
                version = _version(state, subject, number, with_deleted=permanent or number != LATEST)
                words: dict[str, Any] = {"subject": subject, "version": version.version}
                if version.is_deleted is not permanent:
                    code = refusals.VERSION_NOT_DELETED if permanent else refusals.VERSION_DELETED
                    raise RegistryRefusal(code, **words)
                _require_unreferenced(state, [version])
                gone = replace(version, is_deleted=True)
                entries: list[Entry] = [(version.key.encode(), None if permanent else gone.encode())]
                is_last = not permanent and state.versions(subject) == [version]
                entries += _settings_entries(state, subject) if is_last else []
                entries += [state.noop()] if permanent else []
            write(entries)
        return version.version

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        with self.store.writing() as write:
            with self.store.reading() as state:
                _require_writable(state, subject)
                versions, active = state.versions(subject, with_deleted=True), state.versions(subject)
                if not versions:
                    raise RegistryRefusal(refusals.SUBJECT_NOT_FOUND, subject=subject)
                if permanent and active:
                    raise RegistryRefusal(refusals.SUBJECT_NOT_DELETED, subject=subject)
                if not permanent and not active:
                    raise RegistryRefusal(refusals.SUBJECT_DELETED, subject=subject)
                _require_unreferenced(state, versions if permanent else active)
                if permanent:
                    entries: list[Entry] = [(version.key.encode(), None) for version in versions]
                    entries.append(state.noop())
                else:
                    key = RegistryKey(kind=KeyType.DELETE_SUBJECT, subject=subject)
                    value = compact({"subject": subject, "version": active[-1].version}).encode()
                    entries = [(key.encode(), value), *_settings_entries(state, subject)]
            write(entries)
        return [version.version for version in (versions if permanent else active)]

    # Levels and modes.

    def setting(self, kind: KeyType, subject: str | None) -> Mapping[str, Any] | None:
        with self.store.reading() as state:
            return state.setting(kind, subject)

    def change_level(self, subject: str | None, level: str) -> None:
        if level.upper() not in LEVELS:
            raise RegistryRefusal(refusals.INVALID_LEVEL)
        self._change(KeyType.CONFIG, subject, {"compatibilityLevel": level.upper()})

    def change_mode(self, subject: str | None, mode: str, *, is_forced: bool = False) -> None:
        if mode.upper() not in MODES:
            raise RegistryRefusal(refusals.INVALID_MODE)
        with self.store.reading() as state:
            is_empty = not (state.subjects() if subject is None else state.versions(subject))
        if mode.upper() == "IMPORT" and not is_empty and not is_forced:
            raise RegistryRefusal(refusals.NOT_PERMITTED, details="Cannot import since found existing subjects")
        self._change(KeyType.MODE, subject, {"mode": mode.upper()})

    def reset(self, kind: KeyType, subject: str | None) -> Mapping[str, Any] | None:
        """Deletes a setting; returns what it was."""
        before = self.setting(kind, subject)
        if before is not None:
            self._change(kind, subject, None)
        return before

    def _change(self, kind: KeyType, subject: str | None, value: Mapping[str, Any] | None) -> None:
        key = RegistryKey(kind=kind, subject=subject)
        named = value if subject is None or value is None else {"subject": subject, **value}
        with self.store.writing() as write:
            write([(key.encode(), None if named is None else compact(named).encode())])


def _version(state: RegistryState, subject: str, number: int, *, with_deleted: bool = False) -> SchemaVersion:
    versions = state.versions(subject, with_deleted=with_deleted)
    if not versions:
        raise RegistryRefusal(refusals.SUBJECT_NOT_FOUND, subject=subject)
    version = versions[-1] if number == LATEST else next((each for each in versions if each.version == number), None)
    if version is None:
        raise RegistryRefusal(refusals.VERSION_NOT_FOUND, version=number)
    return version


def _same(versions: Sequence[SchemaVersion], schema: SchemaText) -> SchemaVersion | None:
    return next((version for version in reversed(versions) if version.schema == schema), None)


def _checked(resolved: ResolvedSchema, normalize: bool) -> SchemaText:
    length = len(resolved.schema.text.encode())
    if length > SCHEMA_BYTES_MAX:
        raise RegistryRefusal(refusals.SCHEMA_TOO_LARGE, length=length, limit=SCHEMA_BYTES_MAX)
    return checked(resolved, normalize=normalize)


def _resolved(state: RegistryState, schema: SchemaText) -> ResolvedSchema:
    """With the texts of all references, and theirs."""
    texts: dict[str, str] = {}
    names: set[str] = set()  # of those that are added, or about to be: imported versions may refer to each other
    references: list[SchemaReference] = []

    def add(kind: str, each: SchemaReference, depth: int = 1) -> SchemaReference:
        names.add(each.name)
        if len(names) > REFERENCES_MAX or depth > REFERENCES_DEPTH_MAX:
            details = f"it has more than {REFERENCES_MAX:,} references, or more than {REFERENCES_DEPTH_MAX} in each other"
            raise RegistryRefusal(refusals.INVALID_SCHEMA, kind=kind, details=details)
        versions = state.versions(each.subject, with_deleted=True)
        active = [version for version in versions if not version.is_deleted]
        candidates = (
            active[-1:] if each.version == LATEST else [version for version in versions if version.version == each.version]
        )
        if not candidates:
            details = f'No schema reference found for subject "{each.subject}" and version {each.version}'
            raise RegistryRefusal(refusals.INVALID_SCHEMA, kind=kind, details=details)
        for inner in candidates[0].schema.references:
            if inner.name not in names:
                add(kind, inner, depth + 1)
        texts[each.name] = candidates[0].schema.text
        return replace(each, version=candidates[0].version)

    for reference in schema.references:
        references.append(add(schema.kind.value, reference))
    return ResolvedSchema(schema=replace(schema, references=tuple(references)), referenced=texts)


def _earlier(state: RegistryState, subject: str) -> list[EarlierSchema]:
    return [
        EarlierSchema(version=version.version, resolved=_resolved(state, version.schema)) for version in state.versions(subject)
    ]


def _new_version(state: RegistryState, subject: str, schema: SchemaText, order: SchemaOrder) -> SchemaVersion:
    """The next version, or in the mode IMPORT what the client says."""
    _require_writable(state, subject)
    if order.schema_id is not None and state.mode(subject) != "IMPORT":
        raise RegistryRefusal(refusals.NOT_PERMITTED, details=f"Subject {subject} is not in import mode")
    if order.schema_id is None and state.mode(subject) == "IMPORT":
        raise RegistryRefusal(
            refusals.NOT_PERMITTED, details=f"Subject {subject} is in import mode, which takes schemas with ids"
        )
    former = state.versions(subject, with_deleted=True)
    schema_id = order.schema_id or state.id_of(schema) or max(state.highest_id + 1, FIRST_ID)
    others = [each for each in state.of_id(schema_id) if each.schema != schema]
    if others:
        details = f"Overwrite new schema with id {schema_id} is not permitted: {others[0].subject} has another one with it"
        raise RegistryRefusal(refusals.NOT_PERMITTED, details=details)
    number = order.version if order.schema_id and order.version else (former[-1].version if former else 0) + 1
    if any(each.version == number and not each.is_deleted for each in former):
        raise RegistryRefusal(refusals.NOT_PERMITTED, details=f"Version {number} of subject {subject} is another schema")
    return SchemaVersion(subject=subject, version=number, schema_id=schema_id, guid=schema.guid, schema=schema)


def _require_writable(state: RegistryState, subject: str) -> None:
    if state.mode(subject).startswith("READONLY"):
        raise RegistryRefusal(refusals.NOT_PERMITTED, details=f"Subject {subject} is in read-only mode")


def _require_unreferenced(state: RegistryState, versions: Sequence[SchemaVersion]) -> None:
    for version in versions:
        if state.referring(version.subject, version.version):
            raise RegistryRefusal(refusals.REFERENCED, subject=version.subject, version=version.version)


def _settings_entries(state: RegistryState, subject: str) -> list[Entry]:
    """What ends with a subject: its level and its mode."""
    kinds = [kind for kind in (KeyType.CONFIG, KeyType.MODE) if state.setting(kind, subject) is not None]
    return [(RegistryKey(kind=kind, subject=subject).encode(), None) for kind in kinds]
