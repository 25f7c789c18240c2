"""Kafka's public description of a message, as a tree of fields: which versions have it, where it may be null, where it is a tag.

The descriptions are Kafka's own JSON files, which kafka-python ships as package data. Only `_DESCRIPTIONS` knows where they are;
no code of that package runs (importing it would take half of the broker's startup time). A release that moves or changes them
fails tests/unit/broker/protocol/test_codec.py with a clear message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

_PACKAGE, _DESCRIPTIONS = "kafka", "protocol/schemas/resources"
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_WORD = re.compile(r"(?<!^)(?=[A-Z])")  # before each capital but the first


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty if last < first."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `kind` is its type, or that of its elements; a struct has `fields`. It is a tag in the `tagged` versions."""

    name: str
    kind: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any  # a list's default is (), or None
    fields: tuple[Field, ...]


def describe(name: str) -> tuple[tuple[Field, ...], Versions]:
    """The fields of a message, and in which versions it is flexible (KIP-482), by its name in Kafka: "MetadataRequest"."""
    message = json.loads(_COMMENT.sub("", read_description(name)))
    common = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", ())}
    return _fields(message["fields"], common), _versions(message["flexibleVersions"])


def read_description(name: str) -> str:
    """The JSON of a message, with its comments; FileNotFoundError if the installed release has it elsewhere."""
    spec = find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    try:
        if spec and places:
            return str(spec.loader.get_data(f"{places[0]}/{_DESCRIPTIONS}/{name}.json"), "utf-8")  # type: ignore[union-attr]
    except OSError:
        pass
    raise FileNotFoundError(
        f"no {_DESCRIPTIONS}/{name}.json in package {_PACKAGE!r}: Kafka's message descriptions are read there"
    )


def _fields(listed: list[dict[str, Any]], common: dict[str, Any]) -> tuple[Field, ...]:
    return tuple(_field(each, common) for each in listed)


def _field(each: dict[str, Any], common: dict[str, Any]) -> Field:
    kind = each["type"].removeprefix("[]")
    is_array = kind != each["type"]
    inside = each.get("fields") or common.get(kind, ())
    return Field(
        name=_WORD.sub("_", each["name"]).lower(),
        kind=kind,
        is_array=is_array,
        versions=_versions(each["versions"]),
        nullable=_versions(each.get("nullableVersions", "none")),
        tagged=_versions(each.get("taggedVersions", "none")),
        tag=each.get("tag", -1),
        default=_default(kind, is_array, each.get("default"), is_struct=bool(inside)),
        fields=_fields(inside, common),
    )


def _versions(text: str) -> Versions:
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), 0x7FFF)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def _default(kind: str, is_array: bool, given: Any, *, is_struct: bool) -> Any:
    if given == "null":
        return None
    if is_array:
        return ()
    if is_struct or kind == "uuid":
        return None
    if kind == "string":
        return given or ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "bool":
        return str(given).lower() == "true"
    return float(given or 0) if kind == "float64" else int(str(given or 0), 0)
