"""A pipeline's settings apart from its topic, table and parser: each declared once, with its default, its values and its meaning.

`PipelineSettings` is the immutable mapping that the ledger stores as JSON and that parsers receive; its attributes are typed, and
return the default for a setting that was not given. A setting that is None was not given. Values are checked where a pipeline is
defined (`pipeline_definition.check_pipeline`, which operators call, too), never where one is registered or read: a ledger may
hold what an older logbus accepted.

Parsers and sinks are named here and not imported, because a DAG file should not pay for importing Arrow; a test keeps
these names in line with theirs.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar, overload
from urllib.parse import urlsplit

from logbus.errors import UserError

PARSERS = (
    "avro",
    "combined",
    "csv",
    "json",
    "json_schema",
    "lines",
    "logfmt",
    "nginx_json",
    "protobuf",
    "raw",
    "regex",
    "syslog",
)
SCHEMA_PARSERS = ("avro", "json_schema", "protobuf")  # whose values name a schema of a registry
SINKS = ("postgres", "iceberg")
DECLARABLE_TYPES = ("text", "integer", "bigint", "double precision", "boolean", "timestamptz", "date", "jsonb")

# Other systems' names for them.
OTHER_NAMES: Mapping[str, str] = {
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "long": "bigint",
    "str": "text",
    "string": "text",
    "varchar": "text",
    "float": "double precision",
    "float8": "double precision",
    "double": "double precision",
    "bool": "boolean",
    "json": "jsonb",
    "timestamp": "timestamptz",
    "datetime": "timestamptz",
}

COLUMN_BYTES_MAX = 63  # PostgreSQL cuts longer names silently
COLUMNS_MAX = 1_590  # a table of PostgreSQL has 1,600, and logbus's own are among them
# Every table of PostgreSQL has these already, and takes no second column of the name. Other sinks could: one rule for all of them
# lets a pipeline change its sink.
COLUMNS_OF_POSTGRES = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
COLUMN_NAMES = (
    f"a column's name has 1 to {COLUMN_BYTES_MAX} bytes and no NUL, and is neither one with a leading _, which are logbus's, nor "
    f"one that PostgreSQL keeps for itself ({', '.join(COLUMNS_OF_POSTGRES)})"
)
MAX_AHEAD_LONGEST = timedelta(days=1)

T = TypeVar("T")
MakeError = Callable[[str], UserError]  # the error that names the pipeline
Check = Callable[[str, Any, MakeError], None]


def advice(given: str, names: Iterable[str]) -> str:
    """The closest names, or all of them."""
    choices = list(names)
    meant = difflib.get_close_matches(given, choices)
    return f"did you mean {' or '.join(meant)}?" if meant else f"there are {', '.join(choices)}"


def check_one_of(names: Iterable[str]) -> Check:
    choices = list(names)

    def check(name: str, value: Any, wrong: MakeError) -> None:
        if value not in choices:
            raise wrong(f"there is no {name} {value!r}: {advice(str(value), choices)}")

    return check


def _check_sink(name: str, value: Any, wrong: MakeError) -> None:
    if value == "parquet":
        raise wrong("there is no sink 'parquet': sink='iceberg', warehouse='/data/lake' writes Parquet files, with a catalog")
    check_one_of(SINKS)(name, value, wrong)


def _check_boolean(name: str, value: Any, wrong: MakeError) -> None:
    if not isinstance(value, bool):
        raise wrong(f"{name} must be True or False; got {value!r}")


def _check_text(name: str, value: Any, wrong: MakeError) -> None:
    if not isinstance(value, str) or not value:
        raise wrong(f"{name} must be a non-empty string; got {value!r}")


def _check_number(meaning: str, highest: float = math.inf, *, is_whole: bool = False) -> Check:
    def check(name: str, value: Any, wrong: MakeError) -> None:
        kinds = int if is_whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value <= highest:  # to Python a bool is an int
            raise wrong(f"{name} must be {meaning}; got {value!r}")

    return check


def is_column_name(name: Any) -> bool:
    """Whether a parser may have a column of this name."""
    if not isinstance(name, str) or name.startswith("_") or "\0" in name or name in COLUMNS_OF_POSTGRES:
        return False
    try:
        return 0 < len(name.encode()) <= COLUMN_BYTES_MAX
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def twins(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names that are one if upper and lower case are the same, as they are to DuckDB and to most readers
    of Iceberg."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def validate_columns(what: str, names: Collection[str], wrong: MakeError) -> None:
    """Rejects columns that no table can have together."""
    if len(names) > COLUMNS_MAX:
        raise wrong(
            f"{what}: {len(names):,} columns, and a table has room for {COLUMNS_MAX:,}: leave some of them to a jsonb column"
        )
    if pair := twins(names):
        raise wrong(
            f"{what}: {pair[0]!r} and {pair[1]!r} differ only in upper and lower case, and many readers treat them as one: "
            "leave one out or rename it"
        )


def _check_columns(name: str, value: Any, wrong: MakeError) -> None:
    if not isinstance(value, Mapping):
        raise wrong(f"{name} must map names to types, such as {{'host': 'text', 'bytes': 'bigint'}}; got {value!r}")
    for column, kind in value.items():
        if not is_column_name(column):
            raise wrong(f"{column!r} cannot be a column name: {COLUMN_NAMES}")
        if kind not in DECLARABLE_TYPES:
            raise wrong(f"column {column!r} has the type {kind!r}: {_advised_type(kind)}")
    validate_columns(name, value, wrong)


def _advised_type(kind: Any) -> str:
    if isinstance(kind, str) and kind.lower() in OTHER_NAMES:
        return f"did you mean {OTHER_NAMES[kind.lower()]}?"
    return advice(str(kind), DECLARABLE_TYPES)


def _check_filter(name: str, value: Any, wrong: MakeError) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(values, list | tuple) for values in value.values()):
        raise wrong(f"{name} must map columns to lists of values, such as {{'status': [500, 503]}}; got {value!r}")


def _check_names(name: str, value: Any, wrong: MakeError) -> None:
    is_list = isinstance(value, list | tuple) and all(isinstance(field, str) for field in value)
    if not is_list or not value or len({*value}) < len(value):
        raise wrong(f"{name} must be a list of names, each once, in the order of a line's fields; got {value!r}")
    if strangers := [field for field in value if not is_column_name(field)]:
        raise wrong(f"{name} become columns, and {strangers[0]!r} cannot be a column name: {COLUMN_NAMES}")
    validate_columns(name, value, wrong)


def _check_delimiter(name: str, value: Any, wrong: MakeError) -> None:
    if not isinstance(value, str) or len(value) != 1:
        raise wrong(f"{name} must be one character, such as ';'; got {value!r}")


def check_registry(name: str, value: Any, wrong: MakeError) -> None:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong(f"{name} must be the URL of a schema registry, such as 'https://registry.example.com:8081'; got {value!r}")
    if parts.username is not None or parts.query:  # the ledger stores it, pages and logs show it
        raise wrong(
            f"{name} must be a URL without a password: user and password belong into the connection of the broker, as "
            "basic.auth.user.info=user:password"
        )


@dataclass(slots=True, kw_only=True)
class PipelineSetting(Generic[T]):
    """One setting. `check` raises for a value that no load could use; None: it is checked elsewhere. Only the `parsers` and the
    `sink` named here use the setting; if none is named, all do."""

    default: T
    meaning: str
    check: Check | None = None
    parsers: tuple[str, ...] = ()
    sink: str | None = None
    name: str = ""

    # A descriptor, not dataclass fields: the mapping must stay exactly what its author gave. The ledger compares definitions
    # literally, and if defaults were filled in, every pipeline would get a new definition on the day a default
    # changes.
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, settings: None, owner: type) -> PipelineSetting[T]: ...
    @overload
    def __get__(self, settings: PipelineSettings, owner: type) -> T: ...
    def __get__(self, settings: PipelineSettings | None, owner: type) -> PipelineSetting[T] | T:
        return self  # of the class; an instance has the value itself under this name


class PipelineSettings(Mapping[str, Any]):
    """The settings that a pipeline's author gave, None left out; other names belong to a parser of the user's own."""

    given: dict[str, Any]

    columns = PipelineSetting[Mapping[str, str]](
        default={},
        meaning="columns and their types: {'host': 'text', 'bytes': 'bigint'}",
        check=_check_columns,
        parsers=("csv", "json", "logfmt", "regex", *SCHEMA_PARSERS),
    )
    infer = PipelineSetting(
        default=False, meaning="infer the columns of JSON from the records", check=_check_boolean, parsers=("json",)
    )
    registry = PipelineSetting[str | None](
        default=None,
        meaning="the URL of the schema registry, for parse='avro', 'protobuf' or 'json_schema'",
        check=check_registry,
        parsers=SCHEMA_PARSERS,
    )
    pattern = PipelineSetting[str | None](
        default=None, meaning="the regular expression of parse='regex', with named groups", parsers=("regex",)
    )
    fields = PipelineSetting[Sequence[str]](
        default=(),
        meaning="the names of a line's fields in their order, for parse='csv'",
        check=_check_names,
        parsers=("csv",),
    )
    delimiter = PipelineSetting(
        default=",",
        meaning="the character between the fields of parse='csv'; a comma by default",
        check=_check_delimiter,
        parsers=("csv",),
    )
    comment = PipelineSetting[str | None](
        default=None,
        meaning="what a line of parse='csv' begins with that is no record, such as '#'; it is counted and left out",
        check=_check_text,
        parsers=("csv",),
    )
    null_value = PipelineSetting[str | None](
        default=None,
        meaning="what a field of parse='csv' holds if it has no value, such as '-'; an empty one has none either",
        check=_check_text,
        parsers=("csv",),
    )
    filter = PipelineSetting[Mapping[str, Sequence[Any]]](
        default={}, meaning="which rows to load; the others are counted and left out", check=_check_filter
    )
    sink = PipelineSetting(
        default="postgres",
        meaning="where rows go: postgres, a table of the warehouse, by default; or iceberg",
        check=_check_sink,
    )
    warehouse = PipelineSetting[str | None](
        default=None, meaning="the directory of Iceberg's tables", check=_check_text, sink="iceberg"
    )
    catalog = PipelineSetting[str | None](
        default=None, meaning="the Iceberg catalog, as pyiceberg's own configuration names it", check=_check_text, sink="iceberg"
    )
    keep_snapshots_days = PipelineSetting[float | None](
        default=None,
        meaning="how many days Iceberg's older snapshots are kept",
        check=_check_number("a number of days, 0 or more"),
        sink="iceberg",
    )
    max_error_rate = PipelineSetting[float | None](
        default=None,
        meaning="the share of records that may fail to parse before the hour fails instead, 0 to 1; a tenth by default",
        check=_check_number("a share between 0 and 1", 1),
    )
    max_errors = PipelineSetting[int | None](
        default=None,
        meaning="the number of records that may fail to parse before the hour fails instead",
        check=_check_number("a number of records, 0 or more", is_whole=True),
    )
    accept_producer_gaps = PipelineSetting(
        default=False,
        meaning="pass the audit even if producers have counted records that are missing",
        check=_check_boolean,
    )
    # Kafka's default for message.timestamp.after.max.ms: what is further ahead is refused there.
    max_ahead_minutes = PipelineSetting[float](
        default=60,
        meaning="how far ahead of the clock a record's timestamp may be and still begin an hour, 0 to 1440 (60)",
        check=_check_number("a number of minutes, 0 to 1440", MAX_AHEAD_LONGEST / timedelta(minutes=1)),
    )
    # Compaction and transactions leave offsets without a record, and no stock client can see why one is missing, so the pipeline
    # has to declare it.
    offset_gaps = PipelineSetting(
        default=False,
        meaning="the topic is compacted or holds transactions, so offsets are missing",
        check=_check_boolean,
    )

    def __init__(self, given: Mapping[str, Any]) -> None:
        # None means that the caller did not give the setting: `hourly_ingest(sink=None)` must be the same pipeline as
        # `hourly_ingest()`.
        kept = {name: value for name, value in given.items() if value is not None}
        vars(self).update({name: kept.get(name, setting.default) for name, setting in SETTINGS.items()}, given=kept)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"the settings of a pipeline are fixed: {name} cannot be set")

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        return repr(self.given)

    def validate(self, wrong: MakeError) -> None:
        """Raises for the first value that no load could use, whatever the parser and the sink."""
        for name, setting in SETTINGS.items():
            if setting.check is not None and name in self.given:
                setting.check(name, self.given[name], wrong)


# By name, in the order of their declaration.
SETTINGS: Mapping[str, PipelineSetting[Any]] = {
    name: value for name, value in vars(PipelineSettings).items() if isinstance(value, PipelineSetting)
}
