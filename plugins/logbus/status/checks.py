"""What `logbus doctor` reports (`Finding`), what its checks examine (`Machine`), and how all of them run in time; and its checks
on servers: whether the broker answers and takes our requests, how full its disks are, whether clocks agree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from confluent_kafka import KafkaError
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus import errors, model, waiting
from logbus.kafka import client, cluster
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger

# spark-submit starts a JVM, Airflow imports itself: seconds each, and a hundred times that on a machine that swaps.
PROGRAM_SECONDS_MAX = 240.0
CHECK_SECONDS_MAX = 300.0  # two programs one after the other, or a server that answers late
NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


class Severity(StrEnum):
    """`ERROR` needs action; `WARNING` may resolve itself; `NOTE` is good to know; `OK` was checked and is fine."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, and what to type about it."""

    severity: Severity
    subject: str
    message: str
    advice: str

    def summary(self) -> dict[str, str]:
        """As JSON-ready values."""
        values = {"severity": self.severity, "subject": self.subject, "message": self.message, "advice": self.advice}
        return {name: str(value) for name, value in values.items()}


def error(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.ERROR, subject=subject, message=message, advice=advice)


def warning(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, advice=advice)


def note(subject: str, message: str, advice: str) -> Finding:
    return Finding(severity=Severity.NOTE, subject=subject, message=message, advice=advice)


def ok(subject: str, message: str) -> Finding:
    return Finding(severity=Severity.OK, subject=subject, message=message, advice="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """A program's output, of stdout and stderr, and its exit status."""

    text: str
    status: int


class ProgramStillRunning(errors.LogbusError):
    """A program has not ended in time. What it would have said is unknown: that is no fault of what it looks at."""


class RunProgram(Protocol):
    """Runs a command; `more` is added to our own environment."""

    def __call__(self, command: Sequence[str], more: Mapping[str, str] = NOTHING_MORE) -> ProgramOutput: ...


def run_program(command: Sequence[str], more: Mapping[str, str] = NOTHING_MORE) -> ProgramOutput:
    """Runs it without input and without a terminal; `ProgramStillRunning` if it was ended at the time limit."""
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_SECONDS_MAX,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ProgramStillRunning(f"{command[0]} has not ended within {PROGRAM_SECONDS_MAX:.0f} s") from None
    except OSError as problem:
        return ProgramOutput(text=str(problem.strerror), status=127)
    return ProgramOutput(text=done.stdout, status=done.returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine as a check sees it; a test passes its own."""

    clock: Callable[[], datetime]
    client_config: Mapping[str, Any] = field(default_factory=dict)
    warehouse_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    run: RunProgram = run_program
    which: Callable[[str], str | None] = shutil.which


Check = Callable[[Machine], Iterator[Finding]]


def run_checks(
    checks: Mapping[str, Check], machine: Machine, seconds_max: float = CHECK_SECONDS_MAX, say: waiting.Say = waiting.logged
) -> list[Finding]:
    """All findings in the order of the checks. A check that does not end in time is itself a finding, and is not waited for."""
    findings_by_check: dict[str, list[Finding]] = {}
    threads = {
        name: threading.Thread(
            target=_note, args=(findings_by_check, name, check, machine, say), name=f"check {name}", daemon=True
        )
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds_max
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        findings_by_check.setdefault(name, [unknown(name, f"no answer within {seconds_max:.0f} s")])
    return [finding for name in checks for finding in findings_by_check[name]]


def _note(findings_by_check: dict[str, list[Finding]], name: str, check: Check, machine: Machine, say: waiting.Say) -> None:
    findings: list[Finding] = []
    try:
        with waiting.announced(f"the check of {name}", say):
            findings.extend(check(machine))
    except ProgramStillRunning as problem:
        findings.append(unknown(name, str(problem)))
    except errors.LogbusError as problem:
        findings.append(error(name, str(problem), "fix that first, then check again"))
    except Exception as problem:  # one failing check must not hide the others
        findings.append(error(name, f"the check itself crashed: {type(problem).__name__}: {problem}", "please report it"))
    findings_by_check.setdefault(name, findings)


def unknown(name: str, message: str) -> Finding:
    """Slow is not wrong."""
    return warning(name, f"not known yet: {message}", f"logbus doctor --only {name}, when the machine is less busy")


# The checks of `logbus doctor` on servers: whether the broker answers and takes our requests, how full its disks are,
# whether clocks agree.


# By request, the lowest version that does what is needed, and what does not work without it.
NEEDED: Mapping[str, tuple[int, str]] = {
    "Produce": (3, "sending records with times and headers"),
    "Fetch": (4, "reading records"),
    "ListOffsets": (1, "finding windows by time"),
    "Metadata": (10, "noticing that a topic was deleted and recreated"),
    "InitProducerId": (0, "sending without duplicates"),
    "OffsetFetch": (1, "consumer groups"),
    "OffsetCommit": (2, "consumer groups"),
    "DescribeGroups": (0, "logbus group"),
    "CreateTopics": (2, "logbus topic"),
    "DescribeConfigs": (1, "when retention deletes what is not loaded, logbus topic config"),
    "IncrementalAlterConfigs": (0, "managed retention, logbus topic config"),
    "DeleteRecords": (0, "managed retention"),
    "DescribeLogDirs": (0, "sizes of topics, free space on the disk"),
}
USABLE_SHARE_LOW, USABLE_SHARE_MIN = 0.15, 0.05
GIB = 1 << 30


def check_broker(machine: Machine) -> Iterator[Finding]:
    """All kinds of requests in one go: a dead broker is asked only once."""
    address = str(machine.client_config.get("bootstrap.servers"))
    try:
        versions = cluster.api_versions(client.Client.for_question(machine.client_config))
    except errors.NotAskable as problem:
        yield note("broker", f"which requests {address} supports is {problem}", "loads do without: they use librdkafka alone")
        return
    except errors.AccessDenied as problem:
        yield error("broker", str(problem), "correct the client settings: --client-config FILE, or LOGBUS_CLIENT_CONFIG")
        return
    except errors.BrokerUnavailable as problem:
        advice = "start it (`logbus broker serve`), or say where it is: --bootstrap-server HOST:PORT, or LOGBUS_BOOTSTRAP_SERVER"
        yield error("broker", str(problem), advice)
        return
    lacking = [f"{name} v{version} ({what})" for name, (version, what) in NEEDED.items() if not takes(versions, name, version)]
    if lacking:
        yield error("broker", f"{address} does not support {', '.join(lacking)}", "use a newer broker, or do without")
    else:
        yield ok("broker", f"{address} supports all {len(NEEDED)} request types that logbus needs ({len(versions)} in total)")


def takes(versions: Mapping[str, tuple[int, int]], name: str, version: int) -> bool:
    return name in versions and versions[name][1] >= version


def check_disk(machine: Machine) -> Iterator[Finding]:
    """How much space is left where the log is stored."""
    asking = client.Client.for_question(machine.client_config)
    try:
        directories = cluster.log_directories(asking)
    except errors.BrokerUnavailable:
        yield note("disk", "the broker does not report how full its disks are", "logbus doctor --only broker")
        return
    if not directories:
        denied = asking.explain(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, ""), "")
        yield note("disk", "how full the broker's disks are, and how large topics are on them, is not shown", str(denied))
    for directory in directories:
        yield room(directory)


def room(directory: cluster.DirectoryReading) -> Finding:
    share, total, usable = directory.usable_share, directory.total_bytes, directory.usable_bytes
    directory_name = f"{directory.path} of broker {directory.broker_id}"
    if share is None or total is None or usable is None:
        return note("disk", f"{directory_name}: the broker does not report its free space", "check with df")
    message = f"{directory_name}: {usable / GIB:.1f} of {total / GIB:.1f} GiB free ({share:.0%})"
    advice = (
        "free some space: logbus retention plan shows what may be deleted, logbus topic ls what is large; "
        "on a full disk producers are refused, and in a cluster its broker leads nothing"
    )
    if share < USABLE_SHARE_MIN:
        return error("disk", message, advice)
    return warning("disk", message, advice) if share < USABLE_SHARE_LOW else ok("disk", message)


# Windows close by this machine's clock, and records are put into them by their producers' clocks. A clock that is ahead closes
# hours before their records have arrived; one that is behind delays every load. The warehouse can be asked for its time; a broker
# cannot, but a record from the future shows that its producer's clock or ours is wrong.
DIFFERENCE_MAX = timedelta(seconds=2)  # NTP keeps machines within milliseconds
DIFFERENCE_ALARM = timedelta(minutes=1)  # a fifth of the usual lateness
TOPICS_MAX = 50
MEND = "make sure that both machines set their clocks by NTP: timedatectl status"


def check_clocks(machine: Machine) -> Iterator[Finding]:
    """Only a note if there is no warehouse: that is a finding of its own."""
    if machine.warehouse_url is None:
        yield note("clocks", "nothing to compare this machine's clock with", "logbus doctor --warehouse URL")
        return
    try:
        engine = connect(machine.warehouse_url)
    except errors.LogbusError:
        yield note("clocks", "the warehouse does not answer, so its clock is not compared", "logbus doctor --only pipelines")
        return
    yield _warehouse_finding(engine, machine)
    topics = set[str]()
    with suppress(ProgrammingError):  # no ledger yet
        topics = {pipeline.topic for pipeline in Ledger(engine).pipelines()}
    yield from _record_findings(sorted(topics)[:TOPICS_MAX], machine)
    engine.dispose()


def _warehouse_finding(engine: Engine, machine: Machine) -> Finding:
    """The difference to the midpoint of the query; half of its duration is uncertain."""
    with engine.connect() as connection:
        before = machine.clock()
        theirs: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
        after = machine.clock()
    difference, uncertain = theirs - (before + (after - before) / 2), (after - before) / 2
    size = abs(difference) - uncertain
    way = "ahead of" if difference > timedelta() else "behind"
    message = f"the warehouse's clock is {seconds(abs(difference))} {way} this machine's (within {seconds(uncertain)})"
    if size > DIFFERENCE_ALARM:
        return error("clocks", message, MEND)
    return warning("clocks", message, MEND) if size > DIFFERENCE_MAX else ok("clocks", message)


def _record_findings(topics: Sequence[str], machine: Machine) -> Iterator[Finding]:
    """Topics whose newest record is from the future."""
    log = Topics(client.Client.for_question(machine.client_config))
    for topic in topics:
        try:
            newest = log.newest(topic, log.topic(topic).partitions)
        except errors.LogbusError:
            return  # findings of their own
        stamp = max((record.timestamp_ms for record in newest.values()), default=0)
        ahead = timedelta(milliseconds=stamp) - (machine.clock() - datetime(1970, 1, 1, tzinfo=UTC))
        if ahead > DIFFERENCE_MAX:
            message = (
                f"topic {topic} has a record from the future: {shown(stamp)}, {seconds(ahead)} ahead of this machine's clock"
            )
            yield warning("clocks", message, f"correct the clock of its producer, or this machine's; {MEND}")


def shown(stamp_ms: int) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return model.instant_text(datetime.fromtimestamp(stamp_ms / 1000, UTC))
    return f"{stamp_ms} ms"


def seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"
