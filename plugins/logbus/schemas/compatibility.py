"""May records of one schema be read with another? The levels of compatibility, and for each type of schema what decides.

The question always has a reader and a writer. BACKWARD: the new schema reads what the last version wrote; FORWARD: the last
version reads what the new one writes; FULL: both; TRANSITIVE: with every version instead of the last. Avro is decided by Apache's
library, JSON Schema (json_schema_compatibility.py) and Protobuf (protobuf_compatibility.py) by rules for a part of each language.
Whatever lies outside of that part is a problem that names it: it is never called compatible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logbus.schemas import json_schema_compatibility, protobuf_compatibility
from logbus.schemas.schema_text import InvalidText, ResolvedSchema, SchemaType, avro_schema, parsed_json, protobuf_files

VERSIONS_COMPARED_MAX = 1_000  # the newest: each takes a millisecond, and the writer waits


class Level(NamedTuple):
    """Who must read whom."""

    new_reads_old: bool
    old_reads_new: bool
    is_transitive: bool


LEVELS: Mapping[str, Level] = {
    "NONE": Level(False, False, False),
    "BACKWARD": Level(True, False, False),
    "BACKWARD_TRANSITIVE": Level(True, False, True),
    "FORWARD": Level(False, True, False),
    "FORWARD_TRANSITIVE": Level(False, True, True),
    "FULL": Level(True, True, False),
    "FULL_TRANSITIVE": Level(True, True, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSchema:
    """A version that a new schema is compared with."""

    version: int
    resolved: ResolvedSchema


def problems_of(level_name: str, new: ResolvedSchema, earlier: Sequence[EarlierSchema]) -> list[str]:
    """Why the new schema is not compatible with these versions, oldest first; empty if it is."""
    level = LEVELS[level_name]
    compared = earlier[-VERSIONS_COMPARED_MAX:] if level.is_transitive else earlier[-1:]
    for old in reversed(compared):
        problems = _problems_with(level, new, old.resolved)
        if problems:
            where = [f"{{oldSchemaVersion: {old.version}}}", f"{{oldSchema: '{old.resolved.schema.text}'}}"]
            return [*problems, *where, f"{{compatibility: '{level_name}'}}"]
    return []


def _problems_with(level: Level, new: ResolvedSchema, old: ResolvedSchema) -> list[str]:
    if new.schema.kind is not old.schema.kind:
        of_kinds = f"Incompatible because of different schema type: {old.schema.kind.value} to {new.schema.kind.value}"
        return [of_kinds] if level.new_reads_old or level.old_reads_new else []
    read_problems = READERS[new.schema.kind]
    try:
        problems = read_problems(new, old) if level.new_reads_old else []
        return problems + (read_problems(old, new) if level.old_reads_new else [])
    except InvalidText as error:  # stored by another registry, whose library takes more
        return [_described("NOT_UNDERSTOOD", str(error), "/")]
    except RecursionError:
        return [_described("NOT_UNDERSTOOD", "nested too deeply to be compared", "/")]


def avro_problems(reader: ResolvedSchema, writer: ResolvedSchema) -> list[str]:
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    checker = ReaderWriterCompatibilityChecker()
    result = checker.get_compatibility(reader=avro_schema(reader), writer=avro_schema(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(kind.name.upper() for kind in result.incompatibilities)
    return [_described(kinds, "; ".join(sorted(result.messages)), ", ".join(sorted(result.locations)))]


def json_problems(reader: ResolvedSchema, writer: ResolvedSchema) -> list[str]:
    documents = [
        json_schema_compatibility.JsonDocument(
            parsed_json(resolved.schema.text), {name: parsed_json(text) for name, text in resolved.referenced.items()}
        )
        for resolved in (reader, writer)
    ]
    return [_described(*problem) for problem in json_schema_compatibility.reading_problems(*documents)]


def protobuf_problems(reader: ResolvedSchema, writer: ResolvedSchema) -> list[str]:
    files = protobuf_files(reader), protobuf_files(writer)
    return [_described(*problem) for problem in protobuf_compatibility.reading_problems(*files)]


def _described(kind: str, description: str, path: str) -> str:
    """In the form of Confluent's messages."""
    return f"{{errorType:'{kind}', description:'{description}', additionalInfo:'{path}'}}"


READERS: Mapping[SchemaType, Callable[[ResolvedSchema, ResolvedSchema], list[str]]] = {
    SchemaType.AVRO: avro_problems,
    SchemaType.JSON: json_problems,
    SchemaType.PROTOBUF: protobuf_problems,
}
