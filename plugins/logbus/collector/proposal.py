"""How a clock and a parser would read a log's first lines, and the commands that would load it: for a log not yet described.

A parser is proposed if it accepts nine in ten of the records; of several, the one that extracts most from them, so the order of
the table below. Two must pass a further test, because they accept nearly anything: logfmt and CSV (likely_columns.py). Access
logs with fields before or behind the usual ones, and lines with a time and then a level, get a regular expression to begin with.
If nothing fits, the log is kept line by line; if it is not UTF-8, nothing is proposed. If many lines continue the one before,
they are joined before a parser is chosen, as the proposed command joins them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from logbus.collector.clocks import LOOKED_AT_LINES, LineClock, TimeOptions, clock_of
from logbus.collector.likely_columns import SHARE_MIN, are_logfmt, csv_settings
from logbus.collector.misdated import why_misdated
from logbus.collector.sources import UNKNOWN_INODE, Fingerprint, Source, check_readable
from logbus.collector.stamped_lines import DAY_MS, LineReading, StampedLine, TimeOf, merged, months_away
from logbus.errors import UnreadableLog
from logbus.ledger.table_names import target_named_after
from logbus.model import instant, instant_text, milliseconds, utc_now
from logbus.parsing import Filtered, Parser, Unparsable, parse_value, parser_for
from logbus.parsing.json_inference import inferred_columns
from logbus.wording import many

JOINED_FROM = 0.05  # of the lines continue the one before: then joining them is proposed
SAMPLES = 3
LINE_CHARACTERS = 100
NGINX_VARIABLES = frozenset(
    {"remote_addr", "request", "body_bytes_sent", "request_time", "http_user_agent", "time_iso8601", "msec"}
)
# Types of groups in the patterns below, unless they are text.
GROUP_TYPES: Mapping[str, str] = {"port": "integer", "status": "integer", "bytes": "bigint"}
# How times before a level are written, by the clock's name.
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
    times: TimeOptions  # with which it was examined
    clock: LineClock
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
        return why_misdated(self.path, self.clock, self.times, now_ms, joins=self.joins) or self.why_unparsed

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
    times: TimeOptions,
    line_bytes_max: int,
    *,
    joins: bool = False,
    parse: str | None = None,
    settings: Mapping[str, Any],
) -> LogProposal:
    """Examines the first records; raises UnreadableLog, or UserError for settings that the parser cannot use."""
    path = path.absolute()
    check_readable(path)
    clock = clock_of(path, line_bytes_max, times)
    lines, is_damaged = first_records(path, times, line_bytes_max, clock, joins)
    if is_damaged and not lines:
        raise UnreadableLog(f"{path} is damaged: not one line of it can be unpacked")
    continued = sum(line.time_of is not TimeOf.LINE and (line.text or b" ")[:1].isspace() for line in lines)
    if not joins and clock.dated and clock.dates_enough(joins=True):
        joined, is_damaged_too = first_records(path, times, line_bytes_max, clock, joins=True)
        goes_on = clock.is_understood and continued >= JOINED_FROM * len(lines)
        if goes_on or (has_open_quotes(lines) and csv_settings(joined) is not None):
            joins, lines, is_damaged = True, joined, is_damaged_too
            continued = continued if goes_on else clock.looked_at - clock.dated
    own = [line for line in lines if line.time_of is TimeOf.LINE]
    trials = [trial(one, given, lines) for one, given in candidates(lines, clock, parse, settings)]
    if parse is None and trials[-1].parsed < SHARE_MIN * len(lines):  # not even `lines`: not UTF-8
        trials.append(trial("raw", {}, lines))
    best = next((one for one in trials if one.parsed >= SHARE_MIN * len(lines)), trials[0])
    return LogProposal(
        path=path,
        records=len(lines),
        times=times,
        clock=clock,
        dated=len(own),
        zoneless=sum(line.is_zoneless for line in own),
        first=moment(own, min),
        last=moment(own, max),
        is_damaged=is_damaged,
        ahead=sum(line.is_ahead for line in lines),
        months_away=months_away(Counter(line.timestamp_ms // DAY_MS for line in own)),
        continued=continued,
        joins=joins,
        is_asked=parse is not None,
        trial=best,
        others=tuple(one for one in trials if one is not best),
    )


def first_records(
    path: Path, times: TimeOptions, line_bytes_max: int, clock: LineClock, joins: bool
) -> tuple[list[StampedLine], bool]:
    """The first records, and whether the file is damaged after them. Read by the same reader as in `ship`, with its clock, zone
    and joining: a proposal that read lines differently would promise what ship does not do."""
    source = Source(source_id="", path=str(path), device=0, inode=UNKNOWN_INODE, head=Fingerprint())
    now_ms, damaged = milliseconds(utc_now()), list[UnreadableLog]()
    reading = LineReading(now_ms, line_bytes_max, True, times, {"": clock}, joins, damaged)
    return [line for line in islice(merged([source], reading), LOOKED_AT_LINES) if line.text is not None], bool(damaged)


def moment(lines: Sequence[StampedLine], which: Callable[..., int]) -> datetime | None:
    if not lines:
        return None
    return instant(which(line.timestamp_ms for line in lines))


def candidates(
    lines: Sequence[StampedLine], clock: LineClock, parse: str | None, settings: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Parsers that may fit, with their settings, those that extract most first; or the one the user asked about."""
    if parse is not None:
        return [(parse, settings)]
    texts = [line.text for line in lines if line.text]
    found: list[tuple[str, Mapping[str, Any]]] = [("combined", {})]
    if looks_like_nginx(texts):
        found.append(("nginx_json", {}))
    found.append(("json", {"infer": True}))
    if any(name.startswith("syslog") for name in clock.names):
        found.append(("syslog", {}))
    if are_logfmt(texts):
        found.append(("logfmt", {}))
    of_csv = None if "access log" in clock.names else csv_settings(lines)
    if of_csv is not None and of_csv.get("delimiter") != "|":
        found.append(("csv", of_csv))
    patterns = {**PATTERNS} | {name: (LEVEL_PATTERN.format(written=written, level=LEVEL),) for name, written in WRITTEN.items()}
    found += [("regex", regex_settings(best_of(patterns[name], texts))) for name in clock.names if name in patterns]
    if of_csv is not None and of_csv.get("delimiter") == "|":  # loggers also write it between time, level and message
        found.append(("csv", of_csv))
    return [*found, ("lines", {})]


def best_of(patterns: Sequence[str], texts: Sequence[bytes]) -> str:
    """The first of those that read most lines."""
    lines = [text.decode(errors="replace") for text in texts]
    return max(patterns, key=lambda pattern: sum(map(bool, map(re.compile(pattern).fullmatch, lines))))


def regex_settings(pattern: str) -> Mapping[str, Any]:
    typed = {name: kind for name, kind in GROUP_TYPES.items() if f"(?P<{name}>" in pattern}
    return {"pattern": pattern, **({"columns": typed} if typed else {})}


def has_open_quotes(lines: Sequence[StampedLine]) -> bool:
    """Whether quoted fields go on in the next line."""
    return sum((line.text or b"").count(b'"') % 2 for line in lines) >= JOINED_FROM * len(lines)


def looks_like_nginx(texts: Sequence[bytes]) -> bool:
    try:
        first = json.loads(texts[0]) if texts else None
    except ValueError:
        return False
    return isinstance(first, dict) and len(NGINX_VARIABLES & first.keys()) >= 2


def trial(parse: str, settings: Mapping[str, Any], lines: Sequence[StampedLine]) -> ParserTrial:
    parser: Parser = parser_for(parse, with_inferred(parse, settings, lines))
    names, errors, parsed = tuple(parser.columns), Counter[str](), 0
    samples: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            row = parse_value(parser, line.text or b"")
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


def with_inferred(parse: str, settings: Mapping[str, Any], lines: Sequence[StampedLine]) -> Mapping[str, Any]:
    """The settings with the columns that a load would infer from these lines."""
    if parse != "json" or not settings.get("infer"):
        return settings
    return {**settings, "columns": {**inferred_columns(line.text for line in lines), **settings.get("columns", {})}}


def commands(proposal: LogProposal, options: Sequence[str]) -> list[str]:
    """What to type; `options` are the time options with which the file was examined."""
    name, found = proposal.name, proposal.trial
    joined = ["--join-lines"] if proposal.joins else []
    settings = ["--settings", shlex.quote(json.dumps(found.settings))] if found.settings else []
    ship = ["logbus ship", shlex.quote(str(proposal.path)), "--topic", name, *map(shlex.quote, options), *joined]
    register = ["logbus pipeline register", name, "--topic", name, "--table", name, "--parse", found.parse, *settings]
    return [" ".join(ship), " ".join(register), f"logbus load --pipeline {name}"]


def dag(proposal: LogProposal) -> str:
    """A file for Airflow's DAGs folder."""
    name, found = proposal.name, proposal.trial
    words = [f'pipeline="{name}"', f'topic="{name}"', f'table="{name}"', f'parse="{found.parse}"']
    words += [f"{key}={raw(value) if key == 'pattern' else repr(value)}" for key, value in found.settings.items()]
    call = f"hourly_ingest({', '.join(words)})"
    if len(call) > LINE_CHARACTERS:
        call = "\n".join(["hourly_ingest(", *(f"    {word}," for word in words), ")"])
    return (
        f'"""An Airflow DAG: every hour of the topic {name} into the table {name}."""\n\n'
        f"from logbus.pipelines import hourly_ingest\n\n{call}\n"
    )


def raw(pattern: str) -> str:
    """As a raw string, the usual way to write a regular expression in Python, if possible."""
    return f'r"{pattern}"' if '"' not in pattern and not pattern.endswith("\\") else repr(pattern)


def summary(proposal: LogProposal, options: Sequence[str]) -> dict[str, Any]:
    """As JSON-ready values."""
    return {
        "file": str(proposal.path),
        "records": proposal.records,
        "clock": list(proposal.clock.names),
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
        "parsed": {one.parse: one.parsed for one in (proposal.trial, *proposal.others)},
        "samples": [{name: shown(value) for name, value in one.items()} for one in proposal.trial.samples],
        "errors": dict(proposal.trial.errors),
        "commands": commands(proposal, options),
        "dag": dag(proposal),
    }


def shown(value: Any) -> Any:
    """A column's value as JSON can hold it."""
    if isinstance(value, datetime):
        return instant_text(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
