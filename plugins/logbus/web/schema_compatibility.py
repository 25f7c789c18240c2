"""May records of one schema be read with another? The levels of compatibility, and for each type of schema what decides; for
Protobuf the descriptors: fields by number, types by full name.

Of Protobuf binary messages only: a field's name may change. A narrower type, a smaller enumeration under proto2's rules, a field
that was single and is repeated no longer, two fields that became alternatives: all of these lose something that was written, and
are problems. So is what is not compared: groups, extensions, editions, another syntax, unless both files are equal.

The question always has a reader and a writer. BACKWARD: the new schema reads what the last version wrote; FORWARD: the last
version reads what the new one writes; FULL: both; TRANSITIVE: with every version instead of the last. Avro is decided by Apache's
library, JSON Schema (json_schema_compatibility.py) and Protobuf by rules for a part of each language.
Whatever lies outside of that part is a problem that names it: it is never called compatible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from logbus.web import json_schema_compatibility
from logbus.web.json_schema_compatibility import ReadingProblem
from logbus.web.schema_text import InvalidText, ResolvedSchema, SchemaType, avro_schema, parsed_json, protobuf_files

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto


# FieldDescriptorProto.Type, by name: what each type is read as without loss, beside itself.
READ_AS: Mapping[str, frozenset[str]] = {
    "TYPE_BOOL": frozenset(("TYPE_INT32", "TYPE_INT64", "TYPE_UINT32", "TYPE_UINT64")),
    "TYPE_INT32": frozenset(("TYPE_INT64",)),
    "TYPE_UINT32": frozenset(("TYPE_UINT64", "TYPE_INT64")),
    "TYPE_ENUM": frozenset(("TYPE_INT32", "TYPE_INT64")),
    "TYPE_SINT32": frozenset(("TYPE_SINT64",)),
    "TYPE_STRING": frozenset(("TYPE_BYTES",)),
}
UNPACKABLE = frozenset(("TYPE_STRING", "TYPE_BYTES", "TYPE_MESSAGE"))


class ProtobufTypes:
    """The messages and enumerations of files that refer to each other, by full name."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        self.file = files[-1]
        self.messages: dict[str, DescriptorProto] = {}
        self.enums: dict[str, EnumDescriptorProto] = {}
        self.syntax: dict[str, str] = {}  # of a type's file
        for file in files:
            prefix = f".{file.package}" if file.package else ""
            self._take(prefix, file.message_type, file.enum_type, file.syntax or "proto2")

    def _take(self, prefix: str, messages: Sequence[DescriptorProto], enums: Sequence[EnumDescriptorProto], syntax: str) -> None:
        for enum in enums:
            self.enums[f"{prefix}.{enum.name}"] = enum
            self.syntax[f"{prefix}.{enum.name}"] = syntax
        for message in messages:
            name = f"{prefix}.{message.name}"
            self.messages[name] = message
            self.syntax[name] = syntax
            self._take(name, message.nested_type, message.enum_type, syntax)


def reading_problems(reader: Sequence[FileDescriptorProto], writer: Sequence[FileDescriptorProto]) -> list[ReadingProblem]:
    """Empty if every message of the writer is read without loss."""
    if [file.SerializeToString(deterministic=True) for file in reader] == [
        file.SerializeToString(deterministic=True) for file in writer
    ]:
        return []
    return list(_of_files(ProtobufTypes(reader), ProtobufTypes(writer)))


def _of_files(reader: ProtobufTypes, writer: ProtobufTypes) -> Iterator[ReadingProblem]:
    if reader.file.package != writer.file.package:
        described = f"{writer.file.package or '(none)'} to {reader.file.package or '(none)'}"
        yield ReadingProblem("PACKAGE_CHANGED", described, "/")
        return
    if (reader.file.syntax or "proto2") != (writer.file.syntax or "proto2") or "editions" in (
        reader.file.syntax,
        writer.file.syntax,
    ):
        yield ReadingProblem("NOT_UNDERSTOOD", "another syntax, or editions", "/")
        return
    for name, message in writer.messages.items():
        if name not in reader.messages:
            if not message.options.map_entry:
                yield ReadingProblem("MESSAGE_REMOVED", f"message {name} is written and not read", name)
        else:
            yield from _of_messages(name, reader, writer)
    for name in writer.enums:
        if name in reader.enums:
            yield from _of_enums(name, reader, writer)


def _of_messages(name: str, reader: ProtobufTypes, writer: ProtobufTypes) -> Iterator[ReadingProblem]:
    accepting, written = reader.messages[name], writer.messages[name]
    if reader.syntax[name] != writer.syntax[name] or "editions" in (reader.syntax[name], writer.syntax[name]):
        yield ReadingProblem("NOT_UNDERSTOOD", "another syntax, or editions", name)
        return
    if (accepting.extension, accepting.extension_range) != (written.extension, written.extension_range):
        yield ReadingProblem("NOT_UNDERSTOOD", "extensions are not compared", name)
    if accepting.options.message_set_wire_format != written.options.message_set_wire_format:
        yield ReadingProblem("NOT_UNDERSTOOD", "message_set_wire_format is not compared", name)
    read_fields, written_fields = ({field.number: field for field in each.field} for each in (accepting, written))
    for number, own in read_fields.items():
        before = written_fields.get(number)
        if before is not None:
            yield from _of_fields(f"{name}/{number}", own, before, reader, writer)
        elif own.label == own.LABEL_REQUIRED:
            yield ReadingProblem("REQUIRED_FIELD_ADDED", f"field {own.name} is required and not written", f"{name}/{number}")
    yield from _of_alternatives(name, accepting, written)


def _of_fields(
    path: str, own: FieldDescriptorProto, before: FieldDescriptorProto, reader: ProtobufTypes, writer: ProtobufTypes
) -> Iterator[ReadingProblem]:
    read_type, written_type = (type(own).Type.Name(each.type) for each in (own, before))
    if "TYPE_GROUP" in (read_type, written_type):
        yield ReadingProblem("NOT_UNDERSTOOD", f"field {own.name} is a group", path)
    elif read_type != written_type and read_type not in READ_AS.get(written_type, ()):
        described = f"field {own.name}: {_word(written_type)} to {_word(read_type)}"
        yield ReadingProblem("FIELD_KIND_CHANGED", described, path)
    elif read_type == written_type and own.type_name != before.type_name:
        if not (_is_map(own, reader) and _is_map(before, writer)):
            yield ReadingProblem("FIELD_TYPE_CHANGED", f"field {own.name}: {before.type_name} to {own.type_name}", path)
        else:  # a map that has another name: what is in it decides
            entries = reader.messages[own.type_name].field, writer.messages[before.type_name].field
            for entry, entry_before in zip(*entries, strict=True):
                yield from _of_fields(f"{path}/{entry.name}", entry, entry_before, reader, writer)
    if own.label != before.label:
        yield from _of_labels(path, own, before, read_type)
    if own.label == own.LABEL_REPEATED and _is_map(own, reader) != _is_map(before, writer):
        yield ReadingProblem("FIELD_KIND_CHANGED", f"field {own.name} is a map on one side only", path)


def _of_labels(path: str, own: FieldDescriptorProto, before: FieldDescriptorProto, type_name: str) -> Iterator[ReadingProblem]:
    if before.label == before.LABEL_REPEATED:
        yield ReadingProblem("FIELD_LABEL_CHANGED", f"field {own.name} was repeated: only its last value is read", path)
    elif own.label == own.LABEL_REQUIRED:
        yield ReadingProblem("REQUIRED_FIELD_ADDED", f"field {own.name} is required and may be absent", path)
    elif own.label == own.LABEL_REPEATED and type_name not in UNPACKABLE:
        # Every parser has to take both forms, but what is absent (a zero in proto3) becomes a list without it.
        yield ReadingProblem("FIELD_LABEL_CHANGED", f"field {own.name} was single: a value that is not sent is missing", path)


def _of_alternatives(name: str, accepting: DescriptorProto, written: DescriptorProto) -> Iterator[ReadingProblem]:
    """Fields that exclude each other for the reader have to for the writer: otherwise one of them is lost. And a reader that asks
    which of some it got has to know all of them."""
    fields = {field.number: field for field in written.field}
    for index, oneof in enumerate(accepting.oneof_decl):
        members = [field for field in accepting.field if field.HasField("oneof_index") and field.oneof_index == index]
        before = [fields[field.number] for field in members if field.number in fields]
        groups = {field.oneof_index if field.HasField("oneof_index") else f"field {field.number}" for field in before}
        if len(groups) > 1:
            yield ReadingProblem("FIELDS_MOVED_TO_ONEOF", f"fields of oneof {oneof.name} were independent", name)
        if any(field.label == field.LABEL_REPEATED for field in before):
            yield ReadingProblem("FIELDS_MOVED_TO_ONEOF", f"a field of oneof {oneof.name} was repeated", name)
    own = {field.number: field.HasField("oneof_index") for field in accepting.field}
    for index, oneof in enumerate(written.oneof_decl):
        numbers = [field.number for field in written.field if field.HasField("oneof_index") and field.oneof_index == index]
        if any(own.get(number) for number in numbers) and not own.keys() >= set(numbers):
            yield ReadingProblem("ONEOF_FIELD_REMOVED", f"oneof {oneof.name} has alternatives that are not read", name)


def _of_enums(name: str, reader: ProtobufTypes, writer: ProtobufTypes) -> Iterator[ReadingProblem]:
    accepting, written = reader.enums[name], writer.enums[name]
    if reader.syntax[name] == writer.syntax[name] == "proto3":
        return  # a number without a name stays a number
    lacking = {value.number: value.name for value in written.value}
    for value in accepting.value:
        lacking.pop(value.number, None)
    if lacking:
        yield ReadingProblem("ENUM_VALUE_REMOVED", f"{', '.join(lacking.values())} is written and not read", name)


def _is_map(field: FieldDescriptorProto, types: ProtobufTypes) -> bool:
    message = types.messages.get(field.type_name)
    return message is not None and message.options.map_entry


def _word(type_name: str) -> str:
    return type_name.removeprefix("TYPE_").lower()


# May records of one schema be read with another? The levels of compatibility, and for each type of schema what decides.


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
    return [_described(*problem) for problem in reading_problems(*files)]


def _described(kind: str, description: str, path: str) -> str:
    """In the form of Confluent's messages."""
    return f"{{errorType:'{kind}', description:'{description}', additionalInfo:'{path}'}}"


READERS: Mapping[SchemaType, Callable[[ResolvedSchema, ResolvedSchema], list[str]]] = {
    SchemaType.AVRO: avro_problems,
    SchemaType.JSON: json_problems,
    SchemaType.PROTOBUF: protobuf_problems,
}
