"""Does one JSON Schema accept every document that another one accepts? For a part of the language; docs/registry.md lists it.
And which draft a schema is of, and whether equal texts of two drafts mean the same.

The answer is either proven or a list of problems. What restricts the reader and is not understood here is a problem, named by
its keyword, unless reader and writer have equal texts there. What restricts the writer and is not understood only means fewer
documents than are assumed here, which is safe to ignore.

Two subschemas are compared branch by branch: the writer's alternatives (anyOf, oneOf, several types) are split first, so that
each branch needs only one of the reader's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

DRAFT_DEFAULT = "draft/2020-12/schema"
SIMILAR_DRAFTS = frozenset(("draft-07/schema", "draft/2019-09/schema", DRAFT_DEFAULT))
# What these drafts do not all have, or do not all check.
OF_DRAFT = frozenset(
    (
        *("format", "contentEncoding", "contentMediaType", "contentSchema", "contains", "minContains", "maxContains"),
        *("dependencies", "dependentRequired", "dependentSchemas", "prefixItems", "additionalItems"),
        *("unevaluatedProperties", "unevaluatedItems", "if", "then", "else", "$recursiveRef", "$dynamicRef"),
    )
)


def differing_drafts(reader: Any, writer: Any) -> str:
    """Why equal texts may not mean the same; empty if they do. A schema that names no draft is of the newest, by which it is
    checked: beside a similar one the texts count, as long as no keyword is in them whose meaning has changed."""
    named = [root.get("$schema") if isinstance(root, dict) else None for root in (reader, writer)]
    drafts = [DRAFT_DEFAULT if each is None else str(each).partition("json-schema.org/")[2].rstrip("#") for each in named]
    if drafts[0] == drafts[1]:
        return ""
    changed = sorted(OF_DRAFT & (_keywords(reader) | _keywords(writer)))
    if None in named and SIMILAR_DRAFTS.issuperset(drafts) and not changed:
        return ""
    reason = f", and {', '.join(changed)} may mean something else" if changed else ""
    return f"the drafts differ: {named[1] or 'none'} to {named[0] or 'none'}{reason}"


def _keywords(root: Any) -> set[str]:
    """All names in the schema, those of properties among them."""
    names, parts = set[str](), [root]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            names |= part.keys()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return names


# Does one JSON Schema accept every document that another one accepts? For a part of the language; docs/registry.md lists
# it.


TYPES = frozenset(("null", "boolean", "object", "array", "number", "integer", "string"))
# What says nothing about which documents are valid. `format` does for validators that check it, so it counts as a restriction.
ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "id", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default", "examples"),
        *("deprecated", "readOnly", "writeOnly", "javaType", "javaInterfaces", "extendsJavaClass", "typeName"),
    )
)
# What means something else when other keywords beside it differ.
DEPENDENT = frozenset(
    (
        *("unevaluatedProperties", "unevaluatedItems", "additionalItems", "if", "then", "else"),
        *("contains", "minContains", "maxContains"),
    )
)
DEPTH_MAX = 60  # of subschemas in each other; Python's own limit is not far
COMPARISONS_MAX = 20_000  # alternatives in alternatives multiply; a schema of a thousand properties has some thousand
ANY: Mapping[str, Any] = {}
NOTHING: Mapping[str, Any] = {"not": {}}
TYPE_KEYWORDS: Mapping[str, str] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"), "string"),
    **dict.fromkeys(("minItems", "maxItems", "uniqueItems", "items"), "array"),
    **dict.fromkeys(("properties", "additionalProperties", "required", "minProperties", "maxProperties"), "object"),
}


class ReadingProblem(NamedTuple):
    """Why a document of the writer may not be one of the reader."""

    kind: str
    description: str
    path: str


@dataclass(frozen=True)
class JsonDocument:
    """A schema, and those that it refers to by their names."""

    root: Any
    referenced: Mapping[str, Any] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def text_of(self, whole: Any) -> str:
        """Of the root, a referenced schema, or all of these: written once, since each `$ref` asks whether they are equal."""
        if id(whole) not in self._texts:
            self._texts[id(whole)] = _exact(whole)
        return self._texts[id(whole)]


@dataclass(frozen=True)
class Subschema:
    """A part of a document. `base` is the root that its own `#/...` refer to."""

    document: JsonDocument
    base: Any
    schema: Any

    def part(self, schema: Any) -> Subschema:
        return Subschema(self.document, self.base, schema)

    @property
    def members(self) -> Mapping[str, Any]:
        """As an object: true accepts everything, false nothing."""
        if isinstance(self.schema, bool):
            return ANY if self.schema else NOTHING
        return self.schema if isinstance(self.schema, dict) else {"?": self.schema}

    def target(self, reference: str) -> Subschema | None:
        """What `$ref` leads to; None if that is not here."""
        name, _, fragment = reference.partition("#")
        base = self.document.referenced.get(name) if name else self.base
        if base is None or (fragment and not fragment.startswith("/")):
            return None
        schema = base
        for token in fragment.split("/")[1:]:
            step = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and step in schema:
                schema = schema[step]
            elif isinstance(schema, list) and step.isdigit() and int(step) < len(schema):
                schema = schema[int(step)]
            else:
                return None
        return Subschema(self.document, base, schema)


def reading_problems(reader: JsonDocument, writer: JsonDocument) -> list[ReadingProblem]:
    """Empty if the reader accepts every document of the writer."""
    if differing := differing_drafts(reader.root, writer.root):
        return [ReadingProblem("NOT_UNDERSTOOD", differing, "#/$schema")]
    if any(_has_own_base(part) for each in (reader, writer) for part in (each.root, *each.referenced.values())):
        equal = reader == writer
        return [] if equal else [ReadingProblem("NOT_UNDERSTOOD", "an $id inside of the schema changes what $ref means", "#")]
    comparison = SchemaComparison()
    return comparison.problems(Subschema(reader, reader.root, reader.root), Subschema(writer, writer.root, writer.root), "#")


def _has_own_base(root: Any) -> bool:
    """Whether a part has an address of its own, which its references would start from."""
    parts = list(root.values()) if isinstance(root, dict) else []
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$id"), str):
                return True
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return False


class SchemaComparison:
    """Of two documents. Recursive schemas end where a pair comes again deeper in the documents: it is what is being proven. One
    that comes again for the same part of a document leads nowhere: what a `$ref` to itself means is left open."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], int] = {}  # at which depth
        self._depth = 0  # in the documents, by members and items
        self._comparisons = 0

    def problems(self, reader: Subschema, writer: Subschema, path: str) -> list[ReadingProblem]:
        pair = (_identity(reader), _identity(writer))
        if pair in self._open:
            if self._open[pair] < self._depth:
                return []
            return [ReadingProblem("NOT_UNDERSTOOD", "a $ref leads back to where it is", path)]
        self._comparisons += 1
        if len(self._open) > DEPTH_MAX or self._comparisons > COMPARISONS_MAX:
            limits = f"more than {DEPTH_MAX} levels, or {COMPARISONS_MAX:,} pairs"
            return [ReadingProblem("NOT_UNDERSTOOD", f"too much to compare: {limits}", path)]
        self._open[pair] = self._depth
        try:
            return self._compared(reader, writer, path)
        finally:
            del self._open[pair]

    def _inner_problems(self, reader: Subschema, writer: Subschema, path: str) -> list[ReadingProblem]:
        """Of what is in the document that both are about."""
        self._depth += 1
        try:
            return self.problems(reader, writer, path)
        finally:
            self._depth -= 1

    def _compared(self, reader: Subschema, writer: Subschema, path: str) -> list[ReadingProblem]:
        accepting, written = reader.members, writer.members
        if written == NOTHING or not accepting.keys() - ANNOTATIONS or _are_equal(reader, writer):
            return []
        if accepting == NOTHING:
            return [ReadingProblem("NOTHING_ACCEPTED", "the reader accepts nothing here, and the writer does", path)]
        if "$ref" in accepting:
            return self._of_reference(reader, writer, path)
        if "$ref" in written:  # what stands beside it can only restrict the writer more
            target = writer.target(str(written["$ref"]))
            return self.problems(reader, writer.part(True) if target is None else target, path)
        branches = _branches(writer)
        if branches:
            return [problem for branch in branches for problem in self.problems(reader, branch, path)]
        if "allOf" in written:  # it is enough if the reader accepts one of them
            rest = writer.part({name: value for name, value in written.items() if name != "allOf"})
            return self._least([partial(self.problems, reader, part, path) for part in (rest, *_parts(writer, "allOf"))])
        return [problem for keyword in accepting for problem in self._of_keyword(keyword, reader, writer, path)]

    def _of_reference(self, reader: Subschema, writer: Subschema, path: str) -> list[ReadingProblem]:
        reference = str(reader.members["$ref"])
        target = reader.target(reference)
        if target is None:
            return [ReadingProblem("NOT_UNDERSTOOD", f"$ref {reference} is not in the schema or its references", path)]
        if reader.members.keys() - ANNOTATIONS - {"$ref"}:  # whether that counts depends on the draft
            return [ReadingProblem("NOT_UNDERSTOOD", f"$ref {reference} with other keywords beside it", path)]
        return self.problems(target, writer, path)

    def _of_keyword(self, keyword: str, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        """The writer is one branch: no reference, no alternatives."""
        if keyword in ANNOTATIONS or "." in keyword or keyword.startswith("x-"):  # `connect.type`
            return
        concerned = TYPE_KEYWORDS.get(keyword)
        if concerned is not None and not _has_type(writer, concerned):
            return
        rule = RULES.get(keyword)
        if rule is not None:
            yield from rule(self, reader, writer, f"{path}/{keyword}")
        elif not _is_equal_at(keyword, reader, writer):
            yield ReadingProblem("NOT_UNDERSTOOD", f"the keyword {keyword} is not compared", f"{path}/{keyword}")

    @staticmethod
    def _least(attempts: list[Callable[[], list[ReadingProblem]]]) -> list[ReadingProblem]:
        """The first attempt without problems; otherwise the problems of the first one."""
        first: list[ReadingProblem] | None = None
        for attempt in attempts:
            problems = attempt()
            if not problems:
                return []
            first = problems if first is None else first
        return first or []

    # Rules, one for each keyword of the reader.

    def of_type(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        accepted, written = _types(reader), _types(writer)
        lacking = {name for name in written if name not in accepted and not (name == "integer" and "number" in accepted)}
        if lacking:
            yield ReadingProblem("TYPE_NARROWED", f"{', '.join(sorted(lacking))} is written and not read", path)

    def of_values(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        keyword = path.rpartition("/")[2]
        values = [_exact(value) for value in _values(reader.part({keyword: reader.members[keyword]})) or ()]
        written = _values(writer)
        if written is None and _types(writer) == {"boolean"}:
            written = [True, False]
        if written is None and _types(writer) == {"null"}:
            written = [None]
        if written is None:
            yield ReadingProblem("ENUM_ADDED", "the reader accepts some values only, the writer any", path)
        elif lacking := [_exact(value) for value in written if _exact(value) not in values]:
            yield ReadingProblem("ENUM_NARROWED", f"{', '.join(lacking)} is written and not read", path)

    def of_bound(self, sign: int, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        """A least (`sign` 1) or greatest (-1) value: the writer's must be as strict."""
        keyword = path.rpartition("/")[2]
        bound, written = reader.members[keyword], writer.members.get(keyword)
        if not _is_number(bound):  # draft 4 has true and false
            if not _is_equal_at(keyword, reader, writer):
                yield ReadingProblem("NOT_UNDERSTOOD", f"{keyword} is {bound}", path)
            return
        other = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}.get(keyword)
        candidates: list[Any] = [written, writer.members.get(other) if other else None]
        if sign == 1 and keyword not in ("minimum", "exclusiveMinimum") and bound <= 0:
            return
        if not any(sign * each >= sign * bound for each in filter(_is_number, candidates)):
            yield ReadingProblem("BOUND_NARROWED", f"{keyword} is {bound}, the writer's {written}", path)

    def of_multiple(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        divisor, written = reader.members["multipleOf"], writer.members.get("multipleOf")
        if divisor == written:
            return
        if isinstance(divisor, int) and (isinstance(written, int) and written % divisor == 0):
            return
        if divisor == 1 and "number" not in _types(writer):
            return
        yield ReadingProblem("BOUND_NARROWED", f"multipleOf is {divisor}, the writer's {written}", path)

    def of_equal(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        keyword = path.rpartition("/")[2]
        if reader.members[keyword] not in (False, writer.members.get(keyword)):
            yield ReadingProblem("RESTRICTED", f"{keyword} is {_exact(reader.members[keyword])}, the writer's is not", path)

    def of_items(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        accepted, written = reader.members["items"], writer.members.get("items", True)
        if isinstance(accepted, list) or isinstance(written, list) or "prefixItems" in {**reader.members, **writer.members}:
            of_others = ("items", "prefixItems", "additionalItems")
            if not all(_is_equal_at(keyword, reader, writer) for keyword in of_others):
                yield ReadingProblem("NOT_UNDERSTOOD", "items by their position are not compared", path)
            return
        yield from self._inner_problems(reader.part(accepted), writer.part(written), path)

    def of_properties(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        """`properties` and `additionalProperties` together: a property is described by one of them."""
        if "patternProperties" in reader.members:
            yield from (
                ()
                if _are_equal(reader, writer)
                else [ReadingProblem("NOT_UNDERSTOOD", "patternProperties are not compared", path)]
            )
            return
        accepted, written = reader.members.get("properties", {}), writer.members.get("properties", {})
        of_others = reader.members.get("additionalProperties", True)
        # A property that matches a pattern is none of the additional ones: they may be anything then.
        others_written = True if "patternProperties" in writer.members else writer.members.get("additionalProperties", True)
        for name in dict.fromkeys((*accepted, *written)):
            own = writer.part(written.get(name, others_written))
            yield from self._inner_problems(reader.part(accepted.get(name, of_others)), own, f"{path}/properties/{name}")
        yield from self._inner_problems(reader.part(of_others), writer.part(others_written), f"{path}/additionalProperties")

    def of_additional(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        if "properties" not in reader.members:
            yield from self.of_properties(reader, writer, path.rpartition("/")[0])

    def of_declared(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        yield from self.of_properties(reader, writer, path.rpartition("/")[0])

    def of_required(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        required = reader.members["required"]
        lacking = set(required) - set(writer.members.get("required", ())) if isinstance(required, list) else {"?"}
        if lacking:
            yield ReadingProblem("REQUIRED_PROPERTY_ADDED", f"{', '.join(sorted(lacking))} may be absent", path)

    def of_all(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        for part in _parts(reader, "allOf"):
            yield from self.problems(part, writer, path)

    def of_any(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        parts = _parts(reader, "anyOf")
        yield from self._least([partial(self.problems, part, writer, path) for part in parts])

    def of_one(self, reader: Subschema, writer: Subschema, path: str) -> Iterator[ReadingProblem]:
        """Exactly one: as any, if no document can be of two, which is clear where each has other types."""
        types = [_types(part) if "$ref" not in part.members else TYPES for part in _parts(reader, "oneOf")]
        overlap = any(first & second for number, first in enumerate(types) for second in types[number + 1 :])
        if overlap or {"integer", "number"} <= set().union(*types):
            if not _is_equal_at("oneOf", reader, writer):
                yield ReadingProblem("NOT_UNDERSTOOD", "oneOf is compared only where each part has types of its own", path)
            return
        yield from self._least([partial(self.problems, part, writer, path) for part in _parts(reader, "oneOf")])


Rule = Callable[[SchemaComparison, Subschema, Subschema, str], Iterator[ReadingProblem]]


def _bound(sign: int) -> Rule:
    return lambda comparison, reader, writer, path: comparison.of_bound(sign, reader, writer, path)


RULES: Mapping[str, Rule] = {
    "type": SchemaComparison.of_type,
    "enum": SchemaComparison.of_values,
    "const": SchemaComparison.of_values,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), _bound(1)),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), _bound(-1)),
    "multipleOf": SchemaComparison.of_multiple,
    **dict.fromkeys(("pattern", "format", "contentEncoding", "contentMediaType", "uniqueItems"), SchemaComparison.of_equal),
    "items": SchemaComparison.of_items,
    "properties": SchemaComparison.of_declared,
    "additionalProperties": SchemaComparison.of_additional,
    "required": SchemaComparison.of_required,
    "allOf": SchemaComparison.of_all,
    "anyOf": SchemaComparison.of_any,
    "oneOf": SchemaComparison.of_one,
}


def _branches(writer: Subschema) -> list[Subschema]:
    """The writer's alternatives, each with what stands beside them; none if it has none."""
    members = writer.members
    for keyword in ("anyOf", "oneOf"):
        if keyword in members:
            rest = {name: value for name, value in members.items() if name not in (keyword, *ANNOTATIONS)}
            parts = _parts(writer, keyword)
            if not rest:
                return parts
            return [
                writer.part({"allOf": [rest, part.schema]}) if "allOf" not in rest else writer.part(part.schema) for part in parts
            ]
    types = members.get("type")
    if isinstance(types, list) and len(types) > 1:
        return [writer.part({**members, "type": name}) for name in types]
    return []


def _parts(subschema: Subschema, keyword: str) -> list[Subschema]:
    parts = subschema.members[keyword]
    return [subschema.part(part) for part in parts] if isinstance(parts, list) else [subschema.part(parts)]


def _types(subschema: Subschema) -> set[str]:
    """The types that its documents may have."""
    types = subschema.members.get("type")
    named = {types} if isinstance(types, str) else set(types) if isinstance(types, list) else None
    values = _values(subschema)
    of_values = None if values is None else {_type_of(value) for value in values}
    if named is None:
        return set(TYPES) if of_values is None else of_values
    if of_values is None:
        return named
    return {name for name in of_values if name in named or (name == "integer" and "number" in named)}


def _has_type(subschema: Subschema, name: str) -> bool:
    types = _types(subschema)
    return name in types or (name == "number" and "integer" in types)


def _values(subschema: Subschema) -> list[Any] | None:
    members = subschema.members
    if "const" in members:
        return [members["const"]]
    return list(members["enum"]) if isinstance(members.get("enum"), list) else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exact(value: Any) -> str:
    """Equal texts are equal values of JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _identity(subschema: Subschema) -> str:
    """What a subschema means: its text, and the text that its references lead into."""
    own = json.dumps(subschema.schema, sort_keys=True)
    return f"{id(subschema.base)} {own}" if _has_references(own) else own


def _are_equal(reader: Subschema, writer: Subschema) -> bool:
    """Equal texts, whose references lead to equal texts as well."""
    own = _exact(reader.schema)
    if own != _exact(writer.schema):
        return False
    if not _has_references(own):
        return True
    accepting, written = reader.document, writer.document
    return accepting.text_of(reader.base) == written.text_of(writer.base) and (
        accepting.text_of(accepting.referenced) == written.text_of(written.referenced)
    )


def _has_references(text: str) -> bool:
    """`$ref`, `$recursiveRef` or `$dynamicRef`."""
    return "$ref" in text or "Ref" in text


def _is_equal_at(keyword: str, reader: Subschema, writer: Subschema) -> bool:
    """Whether both have the same there. Keywords whose meaning depends on others beside them need all to be equal."""
    if keyword in DEPENDENT:
        return _are_equal(reader, writer)
    absent = object()
    accepted, written = reader.members.get(keyword, absent), writer.members.get(keyword, absent)
    if accepted is absent or written is absent:
        return accepted is written
    # With the keyword, which may be a reference.
    return _are_equal(reader.part({keyword: accepted}), writer.part({keyword: written}))
