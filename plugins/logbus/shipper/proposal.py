"""How an extractor and a parser would read a log's first lines, or the schemas that a topic's newest values name, and the
commands that would load it: for a log not yet described.

A parser is proposed if it accepts nine in ten of the records; of several, the one that extracts most from them, so the order of
the table below. Two must pass a further test, because they accept nearly anything: logfmt and CSV. Access logs with fields before
or behind the usual ones, and lines with a time and then a level, get a regular expression to begin with. If nothing fits, the log
is kept line by line; if it is not UTF-8, nothing is proposed. If many lines continue the one before, they are joined before a
parser is chosen, as the proposed command joins them.

For a topic, the parser is that of the type of schema that most values name. Columns and dead letters are those of a load: the
same decoders, the same columns of fields. The registry is asked for each schema once, and nothing is stored.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from logbus import fingerprint, model
from logbus.errors import UnreadableLog, UserError
from logbus.formatting import many
from logbus.kafka import console_consumer, topics
from logbus.kafka.client import READ_COMMITTED, Client
from logbus.model import instant, instant_text, milliseconds, utc, utc_now
from logbus.parsing import Filtered, Parser, Unparsable, json_format, parse_value, parser_for, schema_format
from logbus.parsing.batches import CALENDAR_MS_MAX, column_names
from logbus.parsing.decoders import FORMATS, Decoders, Schema, SchemaBook, Undecodable, named, prefix_of, with_prefixes
from logbus.shipper import timestamp_extractor
from logbus.shipper.merged_lines import DAY_MS, LineReading, ReadingNotes, TimeOf, TimestampedLine, merged, months_away
from logbus.shipper.sources import UNKNOWN_INODE, Fingerprint, Source, check_readable
from logbus.windows.table_names import target_named_after

SHARE_MIN = 0.9  # of the records must be as a parser expects them
PAIRS_MIN = 0.75  # of the words of logfmt: a word alone is a flag, several are a sentence
DELIMITERS = ",;\t|"
FIELDS_MIN = 3  # of a line of CSV: fewer commas are in many sentences
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
NO_VALUE = b"-"  # in logs with directives


def _is_logfmt(text: bytes) -> bool:
    """Whether nearly all words are pairs, at least two, and none has the name of another: one of two values would be missed."""
    words = QUOTED.sub(b'""', text).split()
    names = [word.partition(b"=")[0] for word in words if b"=" in word[1:]]
    return len(names) >= 2 and len(names) >= PAIRS_MIN * len(words) and len({*names}) == len(names)


def _csv_settings(lines: Sequence[TimestampedLine]) -> Mapping[str, Any] | None:
    """Settings of the parser csv for these records, if nearly all of them have the same number of fields."""
    return _named_by_directive([line.text for line in lines if line.text]) or _delimited(lines)


def _named_by_directive(texts: Sequence[bytes]) -> Mapping[str, Any] | None:
    """The fields are those of the line `#Fields: date time ...`. Zeek writes tabs between names and values, IIS blanks, and
    Amazon's CloudFront blanks between the names and tabs between the values."""
    named = next(filter(None, map(timestamp_extractor.FIELDS_DIRECTIVE.match, texts)), None)
    if named is None:
        return None
    names = column_names(named[1].decode(errors="replace").split())
    records = [text for text in texts if not text.startswith(timestamp_extractor.DIRECTIVE)]
    for delimiter in "\t ":
        if records and sum(len(_csv_fields(text, delimiter)) == len(names) for text in records) >= SHARE_MIN * len(records):
            return {
                "fields": names,
                "delimiter": delimiter,
                "comment": timestamp_extractor.DIRECTIVE.decode(),
                "null_value": NO_VALUE.decode(),
            }
    return None


def _delimited(lines: Sequence[TimestampedLine]) -> Mapping[str, Any] | None:
    """Lines with the same number of delimiters; the fields' names are from the first line, if it is a header. A delimiter of the
    header counts more than another one: `time;price;tax` is not cut at the commas of its numbers."""
    texts = [line.text for line in lines if line.text]
    without_header: Mapping[str, Any] | None = None
    for delimiter in DELIMITERS:
        counts = Counter(len(_csv_fields(text, delimiter)) for text in texts)
        count, often = counts.most_common(1)[0] if counts else (0, 0)
        if count < FIELDS_MIN or often < SHARE_MIN * len(texts):
            continue
        more = {} if delimiter == "," else {"delimiter": delimiter}
        header = _header_of(lines, delimiter)
        if len(header) == count:
            return {"fields": column_names(header), **more}
        if without_header is None and not _is_prose(texts, delimiter):
            without_header = {"fields": [f"field_{number}" for number in range(1, count + 1)], **more}
    return without_header


def _header_of(lines: Sequence[TimestampedLine], delimiter: str) -> Sequence[str]:
    """The words of the first line if it is a header: it has no time, as the records have, and a letter in each of its words."""
    first = lines[0]
    words = [] if first.time_of is TimeOf.LINE else _csv_fields(first.text or b"", delimiter)
    is_header = any(words) and all(any(map(str.isalpha, word)) for word in words if word)
    return words if is_header else ()


def _is_prose(texts: Sequence[bytes], delimiter: str) -> bool:
    """Whether blanks follow the delimiters, as they follow commas in a sentence and the semicolons in a browser's name."""
    mark = delimiter.encode()
    return 2 * sum(text.count(mark + b" ") for text in texts) >= sum(text.count(mark) for text in texts)


def _csv_fields(text: bytes, delimiter: str) -> list[str]:
    """As the parser would take it apart; none if it is not one record of CSV."""
    try:
        (row,) = csv.reader([text.decode(errors="replace").strip("\r\n")], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):
        return []
    return row


JOINED_FROM = 0.05  # of the lines continue the one before: then joining them is proposed
SAMPLES = 3
LINE_CHARACTERS = 100
NGINX_VARIABLES = frozenset(
    {"remote_addr", "request", "body_bytes_sent", "request_time", "http_user_agent", "time_iso8601", "msec"}
)
# Types of groups in the patterns below, unless they are text.
GROUP_TYPES: Mapping[str, str] = {"port": "integer", "status": "integer", "bytes": "bigint"}
# How times before a level are written, by the name of the time format.
ZONE = r"(?:[.,]\d+)?(?: ?(?:Z\b|(?:UTC|GMT)(?:[+-][\d:]+)?\b|[+-]\d\d(?::?\d\d)?(?![\w:-])|[A-Z][a-z]+/[\w/+-]+))?"
WRITTEN: Mapping[str, str] = {
    "ISO 8601": r"\d{4}-\d\d-\d\d[T \t][\d:]+" + ZONE,
    "YY/MM/DD": r"\d\d(?:\d\d)?/\d\d/\d\d [\d:]+" + ZONE,
    "DD Mon YYYY": r"\d{1,2}[ -][A-Z][a-z]{2}[ -]\d{4} [\d:]+" + ZONE,
    "YYMMDD HHMMSS": r"\d{6} \d{6}",
}
LEVEL = (
    "TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL|SEVERE|PANIC|LOG|STATEMENT|DETAIL|HINT|"
    "Trace|Debug|Info|Note|Notice|Warn|Warning|Error|Fatal|Critical|System|"
    "trace|debug|info|notice|warn|warning|error|fatal|crit|critical|alert|emerg"
)
# Time, anything between it and the level (a thread, a process id), level, and the rest.
LEVEL_PATTERN = (
    r"(?s)\[?(?P<written>{written})[\]\s:,|-]+(?:(?P<before>\S.{{0,79}}?)[\s:|-]+)??[\[(<]*(?P<level>{level})\b\s*[\])>]*:?\s*"
    r"(?:[|:-]+\s+)?(?P<message>.*)"
)
# The fields of an access log, common or combined. A client may be a list: those that forwarded the request are behind it.
ACCESS_LINE = (
    r"(?P<host>[^\s,]+(?:, ?[^\s,]+)*) (?:-|(?P<ident>\S+)) (?:-|(?P<username>(?!- ).{1,255}?)) \[(?P<written>[^\]]+)\] "
    r'"(?:(?P<method>[A-Z]+) (?P<path>\S*)(?: (?P<protocol>HTTP/[\d.]+))?|(?P<request>(?:[^"\\]|\\.)*))" '
    r"(?:(?P<status>\d{3})|-) (?:(?P<bytes>\d+)|-)"
    r'(?: "(?:-|(?P<referer>(?:[^"\\]|\\.)*))" "(?:-|(?P<agent>(?:[^"\\]|\\.)*))")?'
)
ACCESS_REST = r"(?: (?P<rest>\S.*?))?\s*"
# Access logs in which other fields precede or follow those, and lines whose level is in another place.
PATTERNS: Mapping[str, Sequence[str]] = {
    "access log": (
        r"(?P<vhost>\S+):(?P<port>\d{1,5}) " + ACCESS_LINE + r"\s*",
        ACCESS_LINE + ACCESS_REST,
        r"(?P<before>\S.{0,199}?) " + ACCESS_LINE + ACCESS_REST,
    ),
    "klog": (r"(?s)(?P<level>[IWEF])(?P<written>\d{4} +[\d:.]+) +(?P<thread>\d+) (?P<source>[^\]]+)\] (?P<message>.*)",),
    "Apache's error log": (
        r"(?s)\[(?P<written>[^\]]+)\] \[(?:(?P<module>[^\]:]*):)?(?P<level>\w+)\] (?:\[pid (?P<pid>[^\]]+)\] )?"
        r"(?:\[client (?P<client>[^\]]+)\] )?(?P<message>.*)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserTrial:
    """A parser tried on the records: it accepted `parsed`, `samples` are the first rows, `errors` counts the others by kind."""

    parse: str
    settings: Mapping[str, Any]
    columns: tuple[str, ...]
    parsed: int
    samples: tuple[Mapping[str, Any], ...]
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProposal:
    """What was found in a file's first records."""

    path: Path
    records: int
    times: timestamp_extractor.TimeOptions  # with which it was examined
    extractor: timestamp_extractor.TimestampExtractor
    dated: int
    zoneless: int
    first: datetime | None
    last: datetime | None
    is_damaged: bool  # the file's compressed data ends early, after these records
    ahead: int  # records whose own time is not believed, because it is ahead of now
    months_away: Mapping[int, int]  # records that lie months away from the others, by their day since 1970
    continued: int  # lines that begin like a continuation of the one before, counted before joining
    joins: bool  # whether they are joined to the records before
    is_asked: bool  # the user named the parser
    trial: ParserTrial
    others: tuple[ParserTrial, ...]

    @property
    def name(self) -> str:
        """For topic, table and pipeline: the file's name, reduced to the characters that are allowed."""
        stem = re.sub(r"[^a-z0-9_]+", "_", self.path.name.lower().partition(".")[0]).strip("_")
        return target_named_after(stem if stem and not stem[0].isdigit() else f"log_{stem}".rstrip("_"))

    @property
    def trouble(self) -> str | None:
        """Why `logbus ship` would refuse the file, or a load most of its records, if that is so."""
        now_ms = milliseconds(utc_now())
        return (
            timestamp_extractor.timestamp_problem(self.path, self.extractor, self.times, now_ms, joins=self.joins)
            or self.why_unparsed
        )

    @property
    def why_unparsed(self) -> str | None:
        """Why no parser can be proposed, if none can."""
        records = f"of the first {many(self.records, 'record')}"
        if self.is_asked and self.trial.parsed < SHARE_MIN * self.records:
            return (
                f"{self.path}: {self.trial.parse} reads {self.trial.parsed} {records}, the others would be dead letters: change "
                "its settings, or leave --parse out to see which parser fits"
            )
        if not self.is_asked and self.trial.parse == "raw":
            return (
                f"{self.path}: {self.records - self.others[-1].parsed} {records} are not UTF-8, as text in the warehouse is: "
                "convert the file (iconv -f ISO-8859-1 -t UTF-8, if that is its encoding), or --parse raw keeps its bytes"
            )
        return None


def propose(
    path: Path,
    times: timestamp_extractor.TimeOptions,
    line_bytes_max: int,
    *,
    joins: bool = False,
    parse: str | None = None,
    settings: Mapping[str, Any],
) -> LogProposal:
    """Examines the first records; raises UnreadableLog, or UserError for settings that the parser cannot use."""
    path = path.absolute()
    check_readable(path)
    extractor = timestamp_extractor.extractor_for(path, line_bytes_max, times)
    lines, is_damaged = _first_records(path, times, line_bytes_max, extractor, joins)
    if is_damaged and not lines:
        raise UnreadableLog(f"{path} is damaged: not one line of it can be unpacked")
    continued = sum(line.time_of is not TimeOf.LINE and (line.text or b" ")[:1].isspace() for line in lines)
    if not joins and extractor.dated and extractor.dates_enough(joins=True):
        joined, is_damaged_too = _first_records(path, times, line_bytes_max, extractor, joins=True)
        goes_on = extractor.is_understood and continued >= JOINED_FROM * len(lines)
        if goes_on or (_has_open_quotes(lines) and _csv_settings(joined) is not None):
            joins, lines, is_damaged = True, joined, is_damaged_too
            continued = continued if goes_on else extractor.looked_at - extractor.dated
    own = [line for line in lines if line.time_of is TimeOf.LINE]
    trials = [trial(name, given, lines) for name, given in _candidates(lines, extractor, parse, settings)]
    if parse is None and trials[-1].parsed < SHARE_MIN * len(lines):  # not even `lines`: not UTF-8
        trials.append(trial("raw", {}, lines))
    best = next((candidate for candidate in trials if candidate.parsed >= SHARE_MIN * len(lines)), trials[0])
    return LogProposal(
        path=path,
        records=len(lines),
        times=times,
        extractor=extractor,
        dated=len(own),
        zoneless=sum(line.is_zoneless for line in own),
        first=instant(min(line.timestamp_ms for line in own)) if own else None,
        last=instant(max(line.timestamp_ms for line in own)) if own else None,
        is_damaged=is_damaged,
        ahead=sum(line.is_ahead for line in lines),
        months_away=months_away(Counter(line.timestamp_ms // DAY_MS for line in own)),
        continued=continued,
        joins=joins,
        is_asked=parse is not None,
        trial=best,
        others=tuple(candidate for candidate in trials if candidate is not best),
    )


def _first_records(
    path: Path,
    times: timestamp_extractor.TimeOptions,
    line_bytes_max: int,
    extractor: timestamp_extractor.TimestampExtractor,
    joins: bool,
) -> tuple[list[TimestampedLine], bool]:
    """The first records, and whether the file is damaged after them. Read by the same reader as in `ship`, with its extractor,
    zone and joining: a proposal that read lines differently would promise what ship does not do."""
    source = Source(source_id="", path=str(path), device=0, inode=UNKNOWN_INODE, head=Fingerprint())
    reading, notes = LineReading(milliseconds(utc_now()), line_bytes_max, True, times, {"": extractor}, joins), ReadingNotes()
    lines = [
        line for line in islice(merged([source], reading, notes), timestamp_extractor.LOOKED_AT_LINES) if line.text is not None
    ]
    return lines, bool(notes.damaged)


def _candidates(
    lines: Sequence[TimestampedLine],
    extractor: timestamp_extractor.TimestampExtractor,
    parse: str | None,
    settings: Mapping[str, Any],
) -> list[tuple[str, Mapping[str, Any]]]:
    """Parsers that may fit, with their settings, those that extract most first; or the one the user asked about."""
    if parse is not None:
        return [(parse, settings)]
    texts = [line.text for line in lines if line.text]
    parsers: list[tuple[str, Mapping[str, Any]]] = [("combined", {})]
    if _looks_like_nginx(texts):
        parsers.append(("nginx_json", {}))
    parsers.append(("json", {"infer": True}))
    if any(name.startswith("syslog") for name in extractor.names):
        parsers.append(("syslog", {}))
    if sum(map(_is_logfmt, texts)) >= SHARE_MIN * len(texts):
        parsers.append(("logfmt", {}))
    of_csv = None if "access log" in extractor.names else _csv_settings(lines)
    if of_csv is not None and of_csv.get("delimiter") != "|":
        parsers.append(("csv", of_csv))
    patterns = {**PATTERNS} | {name: (LEVEL_PATTERN.format(written=written, level=LEVEL),) for name, written in WRITTEN.items()}
    parsers += [("regex", _regex_settings(_best_of(patterns[name], texts))) for name in extractor.names if name in patterns]
    if of_csv is not None and of_csv.get("delimiter") == "|":  # loggers also write it between time, level and message
        parsers.append(("csv", of_csv))
    return [*parsers, ("lines", {})]


def _best_of(patterns: Sequence[str], texts: Sequence[bytes]) -> str:
    """The first of those that read most lines."""
    lines = [text.decode(errors="replace") for text in texts]
    return max(patterns, key=lambda pattern: sum(map(bool, map(re.compile(pattern).fullmatch, lines))))


def _regex_settings(pattern: str) -> Mapping[str, Any]:
    typed = {name: kind for name, kind in GROUP_TYPES.items() if f"(?P<{name}>" in pattern}
    return {"pattern": pattern, **({"columns": typed} if typed else {})}


def _has_open_quotes(lines: Sequence[TimestampedLine]) -> bool:
    """Whether quoted fields go on in the next line."""
    return sum((line.text or b"").count(b'"') % 2 for line in lines) >= JOINED_FROM * len(lines)


def _looks_like_nginx(texts: Sequence[bytes]) -> bool:
    try:
        first = json.loads(texts[0]) if texts else None
    except ValueError:
        return False
    return isinstance(first, dict) and len(NGINX_VARIABLES & first.keys()) >= 2


def trial(parse: str, settings: Mapping[str, Any], lines: Sequence[TimestampedLine]) -> ParserTrial:
    given = settings
    if parse == "json" and settings.get("infer"):  # as a load would infer them from these lines
        given = {
            **settings,
            "columns": {**json_format.inferred_columns(line.text for line in lines), **settings.get("columns", {})},
        }
    return trial_of(parser_for(parse, given), parse, settings, [line.text or b"" for line in lines])


def trial_of(parser: Parser, parse: str, settings: Mapping[str, Any], values: Sequence[bytes | None]) -> ParserTrial:
    names, errors, parsed = tuple(parser.columns), Counter[str](), 0
    samples: list[Mapping[str, Any]] = []
    for value in values:
        try:
            row = parse_value(parser, value)
        except Unparsable as error:
            errors[error.kind] += 1
            continue
        except Filtered:
            pass
        else:
            if len(samples) < SAMPLES:
                samples.append(dict(zip(names, row, strict=True)))
        parsed += 1
    return ParserTrial(
        parse=parse, settings=settings, columns=names, parsed=parsed, samples=tuple(samples), errors=dict(errors.most_common())
    )


def commands(proposal: LogProposal, options: Sequence[str]) -> list[str]:
    """What to type; `options` are the time options with which the file was examined."""
    name = proposal.name
    joined = ["--join-lines"] if proposal.joins else []
    ship = ["logbus ship", shlex.quote(str(proposal.path)), "--topic", name, *map(shlex.quote, options), *joined]
    return [" ".join(ship), *register_commands(name, name, proposal.trial)]


def register_commands(name: str, topic: str, trial: ParserTrial) -> list[str]:
    """What to type once the records are in the topic."""
    settings = ["--settings", shlex.quote(json.dumps(trial.settings))] if trial.settings else []
    register = ["logbus pipeline register", name, "--topic", topic, "--table", name, "--parse", trial.parse, *settings]
    return [" ".join(register), f"logbus load --pipeline {name}"]


def dag_of(name: str, topic: str, trial: ParserTrial) -> str:
    """A file for Airflow's DAGs folder."""
    words = [f'pipeline="{name}"', f'topic="{topic}"', f'table="{name}"', f'parse="{trial.parse}"']
    words += [f"{key}={_raw(value) if key == 'pattern' else repr(value)}" for key, value in trial.settings.items()]
    call = f"hourly_ingest({', '.join(words)})"
    if len(call) > LINE_CHARACTERS:
        call = "\n".join(["hourly_ingest(", *(f"    {word}," for word in words), ")"])
    return (
        f'"""An Airflow DAG: every hour of the topic {topic} into the table {name}."""\n\n'
        f"from logbus.pipelines import hourly_ingest\n\n{call}\n"
    )


def _raw(pattern: str) -> str:
    """As a raw string, the usual way to write a regular expression in Python, if possible."""
    return f'r"{pattern}"' if '"' not in pattern and not pattern.endswith("\\") else repr(pattern)


def summary(proposal: LogProposal, options: Sequence[str]) -> dict[str, Any]:
    """As JSON-ready values."""
    return {
        "file": str(proposal.path),
        "records": proposal.records,
        "time_format": list(proposal.extractor.names),
        "dated": proposal.dated,
        "zoneless": proposal.zoneless,
        "first": proposal.first and instant_text(proposal.first),
        "last": proposal.last and instant_text(proposal.last),
        "trouble": proposal.trouble,
        "damaged": proposal.is_damaged,
        "ahead": proposal.ahead,
        "months_away": sum(proposal.months_away.values()),
        "join_lines": proposal.joins,
        "parse": proposal.trial.parse,
        "settings": dict(proposal.trial.settings),
        "columns": list(proposal.trial.columns),
        "parsed": {trial.parse: trial.parsed for trial in (proposal.trial, *proposal.others)},
        "samples": [{name: shown(value) for name, value in row.items()} for row in proposal.trial.samples],
        "errors": dict(proposal.trial.errors),
        "commands": commands(proposal, options),
        "dag": dag_of(proposal.name, proposal.name, proposal.trial),
    }


def shown(value: Any) -> Any:
    """A column's value as JSON can hold it."""
    if isinstance(value, datetime):
        return instant_text(utc(value))
    if isinstance(value, Decimal | date):
        return str(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# How the newest values of a topic would be read by the schemas that they name, and the commands that would load it.


LOOKED_AT_RECORDS = 1_000  # as of a file's lines

Ask = Callable[[bytes], Schema | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProposal:
    """What was found in a topic's newest records. `schemas` counts the values of each schema, by its name for people."""

    topic: str
    records: int
    first: datetime | None
    last: datetime | None
    schemas: Mapping[str, int]
    trial: ParserTrial

    @property
    def trouble(self) -> str | None:
        """Why a load would refuse most of the records, if that is so."""
        if self.trial.parsed >= SHARE_MIN * self.records:
            return None
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.trial.errors.items())
        return (
            f"{self.topic}: {self.trial.parse} reads {self.trial.parsed} of the last {many(self.records, 'record')}, the others "
            f"would be dead letters ({kinds}): is it the registry that their writers use?"
        )

    @property
    def commands(self) -> list[str]:
        return register_commands(target_named_after(self.topic), self.topic, self.trial)

    @property
    def dag(self) -> str:
        return dag_of(target_named_after(self.topic), self.topic, self.trial)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "topic": self.topic,
            "records": self.records,
            "first": self.first and model.instant_text(self.first),
            "last": self.last and model.instant_text(self.last),
            "schemas": dict(self.schemas),
            "trouble": self.trouble,
            "parse": self.trial.parse,
            "settings": dict(self.trial.settings),
            "columns": list(self.trial.columns),
            "parsed": self.trial.parsed,
            "samples": [{name: shown(value) for name, value in row.items()} for row in self.trial.samples],
            "errors": dict(self.trial.errors),
            "commands": self.commands,
            "dag": self.dag,
        }


def newest_records(config: Mapping[str, Any], topic: str) -> list[Message]:
    """The last records, as many of each partition."""
    log = topics.Topics(Client.for_question(config))
    partitions = log.topic(topic).partitions
    span = console_consumer.PositionSpan(
        kind=console_consumer.PositionKind.BEFORE_END, number=-(-LOOKED_AT_RECORDS // len(partitions))
    )
    bounds = console_consumer.offset_bounds(log, topic, sorted(partitions), span, READ_COMMITTED, {})
    request = console_consumer.ReadRequest(topic=topic)
    reader = console_consumer.consumer(config, request, None)
    try:
        return list(itertools.chain.from_iterable(console_consumer.ConsoleConsumer(reader, request, bounds).batches()))
    finally:
        reader.close()


def propose_topic(
    topic: str, messages: Sequence[Message], ask: Ask, parse: str | None, settings: Mapping[str, Any]
) -> TopicProposal:
    """`settings` have the registry's URL, and whatever else the pipeline is to have. `UserError` if no value names a schema that
    the registry has."""
    headers = [pairs or () for pairs in fingerprint.headers_of_all(messages)]
    values = with_prefixes([message.value() for message in messages], headers)
    book = SchemaBook(ask=ask)
    schemas, types = Counter[str](), Counter[str]()
    for value in values:
        try:
            prefix = prefix_of(value or b"")
            types[book.schema(prefix).type] += 1
            schemas[named(prefix)] += 1
        except Undecodable:
            pass
    if not types and values:
        raise UserError(
            f"none of the last {many(len(values), 'record')} of {topic} names a schema that {settings['registry']} has: "
            "if they are lines of a log or JSON without a registry, try the file that they come from"
        )
    by_type = {form.type: name for name, form in FORMATS.items()}
    name = parse or by_type[types.most_common(1)[0][0] if types else "AVRO"]
    if name not in FORMATS:
        raise UserError(f"{name} reads no values with a schema: --parse is {', '.join(FORMATS)}")
    decoders = Decoders(format=FORMATS[name], book=book)
    book.meet(set(filter(None, decoders.prefixes(values))) if values else ())
    columns = schema_format.schema_columns(decoders, settings.get("columns") or {})
    # A producer may write any number: one after the year 9999 is no instant.
    stamps = [stamp for kind, stamp in map(Message.timestamp, messages) if 0 <= stamp <= CALENDAR_MS_MAX]
    return TopicProposal(
        topic=topic,
        records=len(values),
        first=model.instant(min(stamps)) if stamps else None,
        last=model.instant(max(stamps)) if stamps else None,
        schemas=dict(schemas.most_common()),
        trial=trial_of(parser_for(name, {**settings, "columns": columns}, book), name, settings, values),
    )
