"""The registry's refusals: Confluent's codes, each with the HTTP status that belongs to it, in one table.

A client tells them apart by the code, people by the sentence; both are those of Confluent's registry, so that a client that looks
for one finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logbus.errors import LogbusError

LEVEL_NAMES = "none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive"
MODE_NAMES = "READWRITE, READONLY, READONLY_OVERRIDE, and IMPORT"

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_DELETED = 40404
SUBJECT_NOT_DELETED = 40405
VERSION_DELETED = 40406
VERSION_NOT_DELETED = 40407
NO_OWN_LEVEL = 40408
NO_OWN_MODE = 40409
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
REFERENCED = 42206
OTHER_ID = 42207
INVALID_SUBJECT = 42208
SCHEMA_TOO_LARGE = 42209
STORE_FAILED = 50001
STORE_SLOW = 50002
NOT_THE_WRITER = 50004

SENTENCES: Mapping[int, str] = {
    SUBJECT_NOT_FOUND: "Subject '{subject}' not found.",
    VERSION_NOT_FOUND: "Version {version} not found.",
    SCHEMA_NOT_FOUND: "Schema {name} not found",
    SUBJECT_DELETED: "Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
    SUBJECT_NOT_DELETED: "Subject '{subject}' was not deleted first before being permanently deleted",
    VERSION_DELETED: "Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently",
    VERSION_NOT_DELETED: "Subject '{subject}' Version {version} was not deleted first before being permanently deleted",
    NO_OWN_LEVEL: "Subject '{subject}' does not have subject-level compatibility configured",
    NO_OWN_MODE: "Subject '{subject}' does not have subject-level mode configured",
    INCOMPATIBLE: 'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: {details}',
    INVALID_SCHEMA: "Invalid schema of type {kind}, details: {details}",
    INVALID_VERSION: (
        "The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the string "
        '"latest"'
    ),
    INVALID_LEVEL: f"Invalid compatibility level. Valid values are {LEVEL_NAMES}",
    INVALID_MODE: f"Invalid mode. Valid values are {MODE_NAMES}",
    NOT_PERMITTED: "{details}",
    REFERENCED: "One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    OTHER_ID: "Schema already registered with id {schema_id} instead of input id {new_id}",
    INVALID_SUBJECT: "The specified subject '{subject}' is not a valid subject.",
    SCHEMA_TOO_LARGE: "The schema has {length} bytes; at most {limit} are stored",
    STORE_FAILED: "The topic {topic} cannot be written: {details}",
    STORE_SLOW: "The topic {topic} did not answer in time: {details}",
    NOT_THE_WRITER: "This registry does not write to {topic}: {details}",
}


class RegistryRefusal(LogbusError):
    """A request that the registry does not fulfil."""

    def __init__(self, code: int, sentence: str = "", **words: Any) -> None:
        super().__init__(sentence or SENTENCES[code].format(**words))
        self.code = code

    @property
    def status(self) -> int:
        """Of HTTP: the code's first three digits."""
        return int(str(self.code)[:3])
