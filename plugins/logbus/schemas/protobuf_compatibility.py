"""Can messages of one Protobuf file be read with another? By their descriptors: fields by number, types by full name.

Binary messages only: a field's name may change. A narrower type, a smaller enumeration under proto2's rules, a field that was
single and is repeated no longer, two fields that became alternatives: all of these lose something that was written, and are
problems. So is what is not compared: groups, extensions, editions, another syntax, unless both files are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from logbus.schemas.json_schema_compatibility import ReadingProblem

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
