"""Schemas at random, and others that are close to them: JSON Schema, with documents to try, and files of Protobuf."""

from __future__ import annotations

import base64
import copy
from random import Random
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

NAMES = ("a", "b", "c")
TYPES = ("integer", "number", "string", "boolean", "null", "object", "array")
SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2, 1.0, 1.5, 3, 10, "", "a", "ab", "abc", "b", [], {})
DOCUMENTS = (*SCALARS, [1], ["a"], [1, 1], [1, "a"], {"a": 1}, {"a": "a"}, {"c": None}, {"a": {"a": 1}}, {"a": [1]})


def json_schema(chance: Random, depth: int = 3) -> Any:
    choices = [_trivial, _values, _typed, _typed] + [_object, _object, _array, _combined, _combined, _odd] * (depth > 0)
    return chance.choice(choices)(chance, depth - 1)


def _trivial(chance: Random, depth: int) -> Any:
    return chance.choice([True, False, {}])


def _values(chance: Random, depth: int) -> Any:
    return {"const": chance.choice(SCALARS)} if chance.random() < 0.4 else {"enum": chance.sample(SCALARS, chance.randint(1, 4))}


def _typed(chance: Random, depth: int) -> Any:
    kinds = chance.sample(TYPES, chance.choice((1, 1, 1, 2, 3)))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **_bounds(chance)}


def _bounds(chance: Random) -> dict[str, Any]:
    numbers, lengths = (-1, 0, 1, 1.5, 2), (0, 1, 2, 3)
    values = {
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), numbers),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), lengths),
        **{"multipleOf": (0.5, 1, 1.5, 2), "uniqueItems": (True, False), "pattern": ("^a", "b")},
    }
    return {name: chance.choice(some_values) for name, some_values in values.items() if chance.random() < 0.12}


def _object(chance: Random, depth: int) -> Any:
    schema: dict[str, Any] = {"type": "object"} if chance.random() < 0.8 else {}
    schema["properties"] = {name: json_schema(chance, depth) for name in chance.sample(NAMES, chance.randint(0, 3))}
    if chance.random() < 0.4:
        schema["required"] = chance.sample(NAMES, chance.randint(0, 2))
    if chance.random() < 0.5:
        schema["additionalProperties"] = chance.choice([False, json_schema(chance, depth)])
    if chance.random() < 0.1:
        schema["patternProperties"] = {"^a": json_schema(chance, depth)}
    return schema


def _array(chance: Random, depth: int) -> Any:
    return {"type": "array", "items": json_schema(chance, depth), **_bounds(chance)}


def _combined(chance: Random, depth: int) -> Any:
    parts = [json_schema(chance, depth) for _ in range(chance.randint(1, 3))]
    return {chance.choice(["anyOf", "oneOf", "allOf"]): parts, **(_bounds(chance) if chance.random() < 0.2 else {})}


def _odd(chance: Random, depth: int) -> Any:
    parts = [json_schema(chance, depth) for _ in range(2)]
    return chance.choice([{"not": parts[0]}, {"$ref": "#/$defs/d"}, {"$ref": "#"}, {"if": parts[0], "then": parts[1]}])


def with_definition(schema: Any, definition: Any) -> Any:
    """The schema, with what its references lead to."""
    return {**schema, "$defs": {"d": definition}} if isinstance(schema, dict) else schema


def changed_schema(chance: Random, schema: Any) -> Any:
    if not isinstance(schema, dict) or not schema or chance.random() < 0.1:
        return json_schema(chance, 1)
    schema, keyword = dict(schema), chance.choice([*schema])
    value = schema.pop(keyword)
    if chance.random() < 0.3:
        return schema | (_bounds(chance) if chance.random() < 0.5 else {})
    match value:
        case dict() if keyword in ("properties", "patternProperties", "$defs") and value:
            name = chance.choice([*value])
            return {**schema, keyword: {**value, name: changed_schema(chance, value[name])}}
        case list() if keyword in ("anyOf", "oneOf", "allOf"):
            index = chance.randrange(len(value))
            return {**schema, keyword: [*value[:index], changed_schema(chance, value[index]), *value[index + 1 :]]}
        case list() if keyword in ("enum", "type"):
            return {**schema, keyword: value[:1] if len(value) > 1 else [*value, "null"]}
        case dict() | bool() if keyword in ("items", "additionalProperties", "not", "if", "then"):
            return {**schema, keyword: changed_schema(chance, value)}
        case int() | float() if keyword not in ("const", "uniqueItems"):
            return {**schema, keyword: max(value + chance.choice((-1, 1)), 1 if keyword == "multipleOf" else 0)}
    return schema


def document(chance: Random, depth: int = 3) -> Any:
    if depth == 0 or chance.random() < 0.6:
        return chance.choice(DOCUMENTS)
    if chance.random() < 0.6:
        return {name: document(chance, depth - 1) for name in chance.sample((*NAMES, "ab"), chance.randint(0, 3))}
    return [document(chance, depth - 1) for _ in range(chance.randint(0, 3))]


KINDS = tuple(
    kind for name, kind in FieldDescriptorProto.Type.items() if name.removeprefix("TYPE_") not in ("GROUP", "MESSAGE", "ENUM")
)
OPTIONAL, REPEATED, REQUIRED = (getattr(FieldDescriptorProto, f"LABEL_{name}") for name in ("OPTIONAL", "REPEATED", "REQUIRED"))
MAP_NUMBER = 9


def proto_file(chance: Random) -> FileDescriptorProto:
    """Of the messages A, B and C and the enumerations E and G, which mention each other."""
    file = FileDescriptorProto(name="a.proto", package="p", syntax=chance.choice(("proto3", "proto3", "proto2")))
    for name in "EG":
        enum = file.enum_type.add(name=name)
        for number in range(chance.randint(2, 4)):
            enum.value.add(name=f"{name}_{number}", number=number)
    for name in "ABC":
        message = file.message_type.add(name=name)
        for number in range(1, chance.randint(2, 5)):
            _add_field(chance, file, message, number)
        _make_alternatives(chance, message)
        if chance.random() < 0.2:
            _add_map(chance, message)
    return file


def _add_field(chance: Random, file: FileDescriptorProto, message: DescriptorProto, number: int) -> None:
    labels = [OPTIONAL, OPTIONAL, OPTIONAL, REPEATED] + [REQUIRED] * (file.syntax == "proto2")
    _set_type(chance, message.field.add(name=f"f{number}", number=number, label=chance.choice(labels)))


def _set_type(chance: Random, member: FieldDescriptorProto) -> None:
    member.ClearField("type_name")
    member.type = chance.choice(KINDS)
    if chance.random() < 0.3:
        name = chance.choice("EGBC")
        member.type = FieldDescriptorProto.TYPE_ENUM if name in "EG" else FieldDescriptorProto.TYPE_MESSAGE
        member.type_name = f".p.{name}"


def _add_map(chance: Random, message: DescriptorProto) -> None:
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FieldDescriptorProto.TYPE_INT32, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=chance.choice(KINDS), label=OPTIONAL)
    type_name = f".p.{message.name}.MEntry"
    message.field.add(name="m", number=MAP_NUMBER, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=type_name, label=REPEATED)


def _make_alternatives(chance: Random, message: DescriptorProto) -> None:
    del message.oneof_decl[:]
    for member in message.field:
        member.ClearField("oneof_index")
    members = [member for member in message.field if member.label == OPTIONAL and chance.random() < 0.6]
    if members and chance.random() < 0.3:
        message.oneof_decl.add(name="x")
        for member in members:
            member.oneof_index = 0


def changed_file(chance: Random, before: FileDescriptorProto) -> FileDescriptorProto:
    file = copy.deepcopy(before)
    for _ in range(chance.randint(1, 3)):
        message = chance.choice(file.message_type)
        members = [member for member in message.field if member.number != MAP_NUMBER]
        match chance.randrange(7):
            case 0:
                _add_field(chance, file, message, 1 + max([0, *(member.number for member in members)]))
            case 1 if members:
                message.field.remove(chance.choice(members))
                _make_alternatives(chance, message)
            case 2 | 3 if members:
                _set_type(chance, chance.choice(members))
            case 4 if members:
                member = chance.choice(members)
                member.label = chance.choice([OPTIONAL, REPEATED] + [REQUIRED] * (file.syntax == "proto2"))
                _make_alternatives(chance, message)
            case 5:
                _make_alternatives(chance, message)
            case 6:
                enum = chance.choice(file.enum_type)
                enum.value.add(name=f"{enum.name}_{len(enum.value)}", number=len(enum.value))
    return file


def encoded(file: FileDescriptorProto) -> str:
    """As a registry keeps it."""
    return base64.b64encode(file.SerializeToString()).decode()
