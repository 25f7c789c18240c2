"""The schemas that a load decodes by: those frozen in the ledger, and those a registry has given since.

The tasks of a Spark job ask nobody: what a book does not hold they report, and the driver asks for all of them. In one process
(a redrive, a command) the book asks itself (`ask`). A schema never changes, so nothing is ever asked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from logbus.errors import LoadFailed, LogbusError, RegistryUnavailable
from logbus.schemas.wire_format import UnknownSchemaId, named, reference_of

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"  # a registry's `schemaType`


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSchema:
    """A schema that another one refers to by `name`."""

    name: str
    subject: str
    version: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A registered schema as values refer to it, with all that it imports, dependencies first.

    `text`: the schema; of Protobuf its FileDescriptorProto in base64, which needs no compiler.
    """

    reference: bytes
    type: str
    text: str
    guid: str | None = None
    imports: tuple[ImportedSchema, ...] = ()


class SchemasUnmet(LogbusError):
    """Values refer to schemas that the book does not hold: the driver has to ask for them."""

    def __init__(self, prefixes: Iterable[bytes]) -> None:
        self.prefixes = frozenset(prefixes)
        super().__init__(f"{len(self.prefixes)} schemas that the ledger does not hold yet")


# Each costs a request. A value that merely begins with a zero says anything; a topic of such values is not what the parser reads.
UNKNOWN_MAX = 10_000


@dataclass(slots=True, kw_only=True)
class SchemaBook:
    """Schemas by their reference. `unknown`: those that the registry does not have; `unknown_before`: did not have when the same
    values were loaded before. `met`: the prefixes whose fields have columns."""

    schemas: dict[bytes, Schema] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    unknown_before: frozenset[bytes] = frozenset()
    met: set[bytes] = field(default_factory=set)
    ask: Callable[[bytes], Schema | None] | None = None

    def schema(self, prefix: bytes) -> Schema:
        """Raises `UnknownSchemaId`, `SchemasUnmet`, or what `ask` raises."""
        reference = reference_of(prefix)
        if reference not in self.schemas and reference not in self.unknown:
            if self.ask is None:
                raise SchemasUnmet([prefix])
            self._ask_for(reference, self.ask)
        if reference not in self.schemas:
            raise UnknownSchemaId(f"the registry has no {named(reference)}")
        return self.schemas[reference]

    def _ask_for(self, reference: bytes, ask: Callable[[bytes], Schema | None]) -> None:
        try:
            schema = ask(reference)
        except RegistryUnavailable:
            if reference not in self.unknown_before:
                raise
            schema = None  # as it was: a reload gives the same dead letters, though the registry is gone
        if schema is not None:
            self.schemas[reference] = schema
            return
        self.unknown.add(reference)
        if len(self.unknown) > UNKNOWN_MAX:
            raise LoadFailed(
                f"values name more than {UNKNOWN_MAX:,} schemas that the registry does not have: they are not written with "
                "schemas of this registry, or not with a schema at all"
            )

    def meet(self, prefixes: Iterable[bytes]) -> None:
        """Asks for those that it does not hold."""
        for prefix in sorted(prefixes):
            try:
                self.schema(prefix)
                self.met.add(prefix)
            except UnknownSchemaId:
                pass

    def unmet(self, prefixes: Iterable[bytes]) -> set[bytes]:
        return {prefix for prefix in prefixes if prefix not in self.met and reference_of(prefix) not in self.unknown}
