"""The text of a schema: which type it is of, whether it is valid, and in which form it is stored; and the registry's refusals:
Confluent's codes, each with the HTTP status that belongs to it, in one table.

A client tells refusals apart by the code, people by the sentence; both are those of Confluent's registry, so that a client that
looks for one finds it.

Two texts are one schema if their stored forms are equal: then they have one id. Of Avro that is the form in which Java's library
writes a schema (no whitespace, attributes in its order, names without the namespace that they are in anyway, `"string"` instead
of `{"type": "string"}`), of JSON Schema the text without whitespace, of Protobuf the text as it came, be it a .proto file or a
descriptor in base64. So a .proto file and its descriptor are two schemas.

The compiler of .proto files is protoc itself, from grpcio-tools, in a process of its own: it is C++ that reads strangers' text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logbus import errors
from logbus.errors import LogbusError

if TYPE_CHECKING:
    from avro.schema import Schema as AvroSchema
    from google.protobuf.descriptor_pb2 import FileDescriptorProto


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


# The text of a schema: which type it is of, whether it is valid, and in which form it is stored.


NESTING_MAX = 200  # of JSON: what reads and compares schemas calls itself for each level, and Python allows a thousand calls
PROTOC_SECONDS_MAX = 60.0  # it takes a tenth of a second; more than this and the machine is in trouble
COMPILED_MAX = 1_000  # files that are remembered: a check compares with the same earlier versions again and again
FILE_NAME_BYTES_MAX = 255  # of a reference's name, which is a file's for protoc
FILE_NAME = "default"  # of a .proto file that has no name, as Confluent calls it


class SchemaType(StrEnum):
    """Confluent's names."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """A version of another subject, by the name under which the schema's text mentions it."""

    name: str
    subject: str
    version: int

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A schema with all that makes it the same one as another. `metadata` is JSON with sorted keys, empty if there is none."""

    kind: SchemaType
    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: str = ""

    @property
    def guid(self) -> str:
        """The same in every registry of ours that has this schema."""
        parts = [self.text, *(f"{reference.name}\0{reference.subject}\0{reference.version}" for reference in self.references)]
        if self.metadata:
            parts.append(self.metadata)
        return str(uuid.UUID(bytes=hashlib.md5("\0".join(parts).encode(), usedforsecurity=False).digest()))

    def summary(self) -> dict[str, Any]:
        """As Confluent's answers have it: AVRO is not named, and neither is what there is none of."""
        named: dict[str, Any] = {} if self.kind is SchemaType.AVRO else {"schemaType": self.kind.value}
        if self.references:
            named["references"] = [reference.summary() for reference in self.references]
        if self.metadata:
            named["metadata"] = json.loads(self.metadata)
        return {**named, "schema": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSchema:
    """A schema with the texts that it refers to, by their names there; what those refer to comes before them."""

    schema: SchemaText
    referenced: Mapping[str, str]


def checked(resolved: ResolvedSchema, *, normalize: bool = False) -> SchemaText:
    """The schema in its stored form; `RegistryRefusal` if it is none."""
    schema = resolved.schema
    try:
        text = FORMS[schema.kind](resolved, normalize)
    except (InvalidText, RecursionError) as error:
        raise RegistryRefusal(INVALID_SCHEMA, kind=schema.kind.value, details=error) from None
    references = tuple(sorted(schema.references, key=lambda reference: reference.name)) if normalize else schema.references
    return SchemaText(kind=schema.kind, text=text, references=references, metadata=schema.metadata)


class InvalidText(errors.LogbusError):
    """A text that is no schema of its type."""


def parsed_json(text: str) -> Any:
    try:
        value = json.loads(text)
        compact(value).encode()
    except UnicodeEncodeError:
        raise InvalidText("it has half of a character: a surrogate without the other one") from None
    except (ValueError, RecursionError) as error:
        raise InvalidText(f"it is not JSON: {error}") from None
    if depth(value) > NESTING_MAX:
        raise InvalidText(f"it is nested deeper than {NESTING_MAX} levels")
    return value


def depth(value: Any) -> int:
    """How many objects and arrays are in each other."""
    level, layer = 0, [value]
    while layer := [part for part in layer if isinstance(part, dict | list)]:
        level += 1
        layer = [inner for part in layer for inner in (part.values() if isinstance(part, dict) else part)]
    return level


def compact(value: Any, *, is_sorted: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=is_sorted)


# Avro.

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
OWN_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    "record": ("doc", "fields"),
    "error": ("doc", "fields"),
    "enum": ("doc", "symbols", "default"),
    "fixed": ("doc", "size"),
}
OF_FIELDS = ("name", "type", "doc", "default", "order", "aliases")


def avro_schema(resolved: ResolvedSchema) -> AvroSchema:
    """As the library has it, with the types of all references."""
    from avro.errors import AvroException
    from avro.name import Names
    from avro.schema import make_avsc_object

    names = Names()
    try:
        for text in resolved.referenced.values():
            make_avsc_object(_avro_json(text), names)
        return make_avsc_object(_avro_json(resolved.schema.text), names)
    except (AvroException, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise InvalidText(str(error) or type(error).__name__) from None


def _avro_json(text: str) -> Any:
    """A bare name of a primitive type is a schema too, with or without quotation marks."""
    return text.strip() if text.strip() in PRIMITIVES else parsed_json(text)


def avro_form(resolved: ResolvedSchema, normalize: bool) -> str:
    check_defaults(avro_schema(resolved), set())
    names: set[str] = set()
    for text in resolved.referenced.values():
        _written(_avro_json(text), "", names, False)
    return compact(_written(_avro_json(resolved.schema.text), "", names, normalize))


JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    **dict.fromkeys(("bytes", "string", "fixed", "enum"), (str,)),
    "array": (list,),
}  # and of any other an object
BITS: Mapping[str, int] = {"int": 32, "long": 64}


def check_defaults(schema: AvroSchema, visited: set[int]) -> None:
    """A default that is not of its field's type passes for one where compatibility is decided, and no reader could use it."""
    if id(schema) in visited:
        return
    visited.add(id(schema))
    for field in getattr(schema, "fields", ()):
        if field.has_default and not is_default(field.type, field.default):
            raise InvalidText(f"invalid default for field {field.name}: {json.dumps(field.default)} is no {field.type.type}")
        check_defaults(field.type, visited)
    inner = [getattr(schema, "items", None), getattr(schema, "values", None), *getattr(schema, "schemas", ())]
    for part in filter(None, inner):
        check_defaults(part, visited)


def is_default(schema: AvroSchema, value: Any) -> bool:
    """Whether the JSON value is of the schema; of a union, of any of its branches."""
    kind = schema.type
    if kind == "union":
        return any(is_default(branch, value) for branch in schema.schemas)
    if type(value) not in JSON_TYPES.get(kind, (dict,)):
        return False
    match kind:
        case "int" | "long":
            return -(2 ** (BITS[kind] - 1)) <= value < 2 ** (BITS[kind] - 1)
        case "enum":
            return value in schema.symbols
        case "fixed":
            return len(value) == schema.size
        case "array":
            return all(is_default(schema.items, each) for each in value)
        case "map":
            return all(is_default(schema.values, each) for each in value.values())
        case "record" | "error":
            return all(
                is_default(field.type, value[field.name]) if field.name in value else field.has_default for field in schema.fields
            )
    return True


def _written(schema: Any, namespace: str, names: set[str], is_sorted: bool) -> Any:
    """A valid schema as Java writes it; `names` are those written in full before."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _short(_full(schema, namespace), namespace)
    if isinstance(schema, list):
        return [_written(branch, namespace, names, is_sorted) for branch in schema]
    kind = schema["type"]
    if not isinstance(kind, str):  # {"type": {"type": "array", ...}}
        return _written(kind, namespace, names, is_sorted)
    if kind in OWN_ATTRIBUTES:
        return _named(schema, kind, namespace, names, is_sorted)
    if kind == "array" or kind == "map":
        inner = "items" if kind == "array" else "values"
        own = {"type": kind, inner: _written(schema[inner], namespace, names, is_sorted)}
        return own | _others(schema, ("type", inner), is_sorted)
    others = _others(schema, ("type",), is_sorted)
    if kind not in PRIMITIVES:
        return _short(_full(kind, namespace), namespace)
    return {"type": kind, **others} if others else kind


def _named(schema: Mapping[str, Any], kind: str, namespace: str, names: set[str], is_sorted: bool) -> Any:
    full = _full(str(schema["name"]), str(schema.get("namespace", namespace) or ""))
    space, _, name = full.rpartition(".")
    if full in names:
        return _short(full, namespace)
    names.add(full)
    own: dict[str, Any] = {"type": kind, "name": name}
    if space != namespace:
        own["namespace"] = space
    for attribute in OWN_ATTRIBUTES[kind]:
        if attribute == "fields":
            own["fields"] = [_field(field, space, names, is_sorted) for field in schema["fields"]]
        elif attribute in schema:
            own[attribute] = schema[attribute]
    own |= _others(schema, ("type", "name", "namespace", "aliases", *OWN_ATTRIBUTES[kind]), is_sorted)
    if schema.get("aliases"):
        own["aliases"] = [_short(_full(alias, space), space) for alias in schema["aliases"]]
    return own


def _field(field: Mapping[str, Any], namespace: str, names: set[str], is_sorted: bool) -> dict[str, Any]:
    own = {"name": field["name"], "type": _written(field["type"], namespace, names, is_sorted)}
    own |= {name: field[name] for name in ("doc", "default") if name in field}
    if field.get("order", "ascending") != "ascending":
        own["order"] = field["order"]
    if field.get("aliases"):
        own["aliases"] = field["aliases"]
    return own | _others(field, OF_FIELDS, is_sorted)


def _others(schema: Mapping[str, Any], own: Sequence[str], is_sorted: bool) -> dict[str, Any]:
    """Attributes of the users' own, and logical types."""
    names = [name for name in schema if name not in own]
    return {name: schema[name] for name in (sorted(names) if is_sorted else names)}


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _short(full: str, namespace: str) -> str:
    space, _, name = full.rpartition(".")
    return name if space == namespace else full


# JSON Schema.

DRAFT = re.compile(r"https?://json-schema\.org/(?:draft-0[467]|draft/20(?:19-09|20-12))/schema#?")


def json_form(resolved: ResolvedSchema, normalize: bool) -> str:
    schema = parsed_json(resolved.schema.text)
    if not isinstance(schema, dict | bool):
        raise InvalidText("a JSON Schema is an object, or true or false")
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    if draft is not None and not DRAFT.fullmatch(str(draft)):  # the library would ask that address for it
        raise InvalidText(f"$schema is {draft}, which is not a draft from 4 to 2020-12")
    import jsonschema_rs

    try:
        jsonschema_rs.meta.validate(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        path = "/".join(map(str, getattr(error, "instance_path", ())))
        raise InvalidText(f"#/{path}: {getattr(error, 'message', error)}") from None
    return compact(schema, is_sorted=normalize)


# Protobuf.


def protobuf_form(resolved: ResolvedSchema, normalize: bool) -> str:
    protobuf_files(resolved)
    return resolved.schema.text.strip()


def protobuf_files(resolved: ResolvedSchema) -> Sequence[FileDescriptorProto]:
    """Descriptors of all that it refers to, and of the schema itself last."""
    own = descriptor_of(resolved.schema.text)
    if own is not None:
        return [*(file for name, text in resolved.referenced.items() for file in _files_of(name, text)), own]
    return _compiled(FILE_NAME, (*resolved.referenced.items(), (FILE_NAME, resolved.schema.text)))


def _files_of(name: str, text: str) -> Sequence[FileDescriptorProto]:
    own = descriptor_of(text)
    return _compiled(name, ((name, text),)) if own is None else [own]


def descriptor_of(text: str) -> FileDescriptorProto | None:
    """A file's descriptor that came in base64; None if the text is something else."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return file if file.message_type or file.enum_type else None


@lru_cache(COMPILED_MAX)
def _compiled(name: str, files: tuple[tuple[str, str], ...]) -> Sequence[FileDescriptorProto]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory(prefix="logbus-protoc-") as folder:
        for path, text in _paths(Path(folder), files):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):  # `a` beside `a/b.proto`
                raise InvalidText(f"a reference cannot be called {path.name}, beside the others") from None
        # By its whole path: protoc takes `--x` for an option, and reads the file that `@x` names.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports", "-o", f"{folder}/.set"]
        command.append(f"{folder}/{name}")
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=PROTOC_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidText("protoc did not come to an end") from None
        if ended.returncode:
            raise InvalidText("; ".join(ended.stderr.replace(f"{folder}/", "").strip().splitlines()) or "protoc failed")
        return list(FileDescriptorSet.FromString(Path(folder, ".set").read_bytes()).file)


def _paths(folder: Path, files: Sequence[tuple[str, str]]) -> Iterator[tuple[Path, str]]:
    for name, text in files:
        is_name = name.isprintable() and len(name.encode()) <= FILE_NAME_BYTES_MAX
        path = (folder / name).resolve() if is_name else folder
        if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
            raise InvalidText(f"a reference cannot be called {name[:FILE_NAME_BYTES_MAX]!r}")
        yield path, text


FORMS = {SchemaType.AVRO: avro_form, SchemaType.JSON: json_form, SchemaType.PROTOBUF: protobuf_form}
