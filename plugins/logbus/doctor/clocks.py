"""Clocks: this machine's against the warehouse's and against the records'.

Windows close by this machine's clock, and records are put into them by their producers' clocks. A clock that is ahead closes
hours before their records have arrived; one that is behind delays every load. The warehouse can be asked for its time; a broker
cannot, but a record from the future shows that its producer's clock or ours is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus.doctor.looking import Surroundings
from logbus.errors import LogbusError
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import instant_text
from logbus.status.checkup import Finding, error, note, warning, well
from logbus.warehouse.engine import connect

DIFFERENCE_MAX = timedelta(seconds=2)  # NTP keeps machines within milliseconds
DIFFERENCE_ALARM = timedelta(minutes=1)  # a fifth of the usual lateness
TOPICS_MAX = 50
MEND = "make sure that both machines set their clocks by NTP: timedatectl status"


def check_clocks(around: Surroundings) -> Iterator[Finding]:
    """Only a note if there is no warehouse: that is a finding of its own."""
    if around.warehouse_url is None:
        yield note("clocks", "nothing to compare this machine's clock with", "logbus doctor --warehouse URL")
        return
    try:
        engine = connect(around.warehouse_url)
    except LogbusError:
        yield note("clocks", "the warehouse does not answer, so its clock is not compared", "logbus doctor --only pipelines")
        return
    yield warehouse_finding(engine, around)
    topics = set[str]()
    with suppress(ProgrammingError):  # no ledger yet
        topics = {pipeline.topic for pipeline in Ledger(engine).pipelines()}
    yield from record_findings(sorted(topics)[:TOPICS_MAX], around)
    engine.dispose()


def warehouse_finding(engine: Engine, around: Surroundings) -> Finding:
    """The difference to the midpoint of the query; half of its duration is uncertain."""
    with engine.connect() as connection:
        before = around.clock()
        theirs: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
        after = around.clock()
    difference, uncertain = theirs - (before + (after - before) / 2), (after - before) / 2
    size = abs(difference) - uncertain
    way = "ahead of" if difference > timedelta() else "behind"
    message = f"the warehouse's clock is {seconds(abs(difference))} {way} this machine's (within {seconds(uncertain)})"
    if size > DIFFERENCE_ALARM:
        return error("clocks", message, MEND)
    return warning("clocks", message, MEND) if size > DIFFERENCE_MAX else well("clocks", message)


def record_findings(topics: Sequence[str], around: Surroundings) -> Iterator[Finding]:
    """Topics whose newest record is from the future."""
    log = Topics(Client.of_a_question(around.client_config))
    for topic in topics:
        try:
            newest = log.newest(topic, log.topic(topic).partitions)
        except LogbusError:
            return  # findings of their own
        stamp = max((record.timestamp_ms for record in newest.values()), default=0)
        ahead = timedelta(milliseconds=stamp) - (around.clock() - datetime(1970, 1, 1, tzinfo=UTC))
        if ahead > DIFFERENCE_MAX:
            message = (
                f"topic {topic} has a record from the future: {shown(stamp)}, {seconds(ahead)} ahead of this machine's clock"
            )
            yield warning("clocks", message, f"correct the clock of its producer, or this machine's; {MEND}")


def shown(stamp_ms: int) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return instant_text(datetime.fromtimestamp(stamp_ms / 1000, UTC))
    return f"{stamp_ms} ms"


def seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"
