"""A stream of two million records whose driver, JVM, Python workers, PostgreSQL and broker are killed at random moments; now and then
a second driver is started while the first still runs. In the end the view shows what was sent, the epochs tile the log, and no driver
has committed one after a newer driver had begun. LOGBUS_SOAK_SEED chooses other moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from logbus.expressions import count, sum_of
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Pipeline, milliseconds, utc_now
from logbus.streams import stream_ledger
from logbus.streams.definition import define_stream
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.windows.migrations import create_ledger
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from tests.support.broker import LogbusBroker
from tests.support.postgres import SURVIVES_A_KILL, crash
from tests.support.topics import create_topic, send

RECORDS, PARTITIONS, HOURS, HOSTS = 2_000_000, 4, 3, 200
KILLS = 20
KILLS_PER_RIVAL = 4
EPOCH_OFFSETS = 20_000
EPOCHS_BETWEEN_KILLS = 4
START = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR_MS = 3_600_000

RUN = """
import json, os
from logbus.streams.run import StreamSubmission
client = {"bootstrap.servers": os.environ["BOOTSTRAP"], "log_level": 0}
StreamSubmission(warehouse_url=os.environ["WAREHOUSE"], client_config=client, say=lambda line: print(line, flush=True)).run("hosts")
"""

# Which driver began and which committed each epoch, recorded by the database: a driver's own claim would prove nothing.
WATCHED = """
create table begun (owner bigint primary key, driver text);
create table committed (epoch bigint primary key, owner bigint, driver text);
create function note_begun() returns trigger language plpgsql as $$ begin
    insert into begun values (new.owner, current_setting('application_name')); return new;
end $$;
create function note_committed() returns trigger language plpgsql as $$ begin
    insert into committed
    select new.number, owner, current_setting('application_name') from logbus.stream where name = new.stream; return new;
end $$;
create trigger note_begun after update on logbus.stream for each row when (new.owner > old.owner) execute function note_begun();
create trigger note_committed after insert on logbus.stream_epoch for each row execute function note_committed();
"""


@dataclass
class Requests:
    """What is sent; one in a hundred arrives up to three hours late, one in five hundred is no JSON."""

    seed: int
    truth: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # by minute and host: requests, and their bytes

    def records(self) -> Iterator[dict[str, object]]:
        chance = random.Random(self.seed)
        for number in range(RECORDS):
            arrived = milliseconds(START) + number * HOURS * HOUR_MS // RECORDS
            happened = arrived - (chance.randrange(3 * HOUR_MS) if number % 100 == 0 else 0)
            host, size = f"web-{chance.randrange(HOSTS)}", chance.randrange(60_000)
            value = f'{{"at": {happened}, "host": "{host}", "bytes": {size}}}' if number % 500 else "?"
            if number % 500:
                figures = self.truth.setdefault((happened // 60_000, host), [0, 0])
                figures[0] += 1
                figures[1] += size
            yield {"value": value.encode(), "timestamp": arrived, "partition": number % PARTITIONS}


@dataclass
class Stream:
    """The stream, its servers, and the processes that run it: `logbus stream run` under a supervisor that starts it again."""

    broker: LogbusBroker
    postgres: EmbeddedPostgres
    url: str
    engine: Engine
    log: Path
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)  # the newest last

    def supervise(self) -> None:
        if not self.runs or self.runs[-1].poll() is not None:
            self.start()

    def start(self) -> None:
        """One more driver; those that still run are left alone. Its database sessions carry its number."""
        url = make_url(self.url).update_query_dict({"application_name": f"driver {len(self.runs) + 1}"})
        environment = {**os.environ, "BOOTSTRAP": self.broker.bootstrap, "WAREHOUSE": url.render_as_string(hide_password=False)}
        with self.log.open("ab") as output:
            command = [sys.executable, "-c", RUN]
            self.runs.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))

    def progress(self) -> int:
        """The number of the last epoch; the stream is started again if it has ended."""
        self.supervise()
        try:
            with self.engine.connect() as connection:
                return stream_ledger.last_epoch(connection, "hosts")
        except SQLAlchemyError:
            return -1

    def processes(self, is_one: Callable[[list[str]], bool]) -> list[psutil.Process]:
        """Those that the drivers' runs have started and whose command line matches."""
        matching = []
        for run in self.runs:
            with suppress(psutil.Error):
                for process in psutil.Process(run.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        matching += [process] if is_one(process.cmdline()) else []
        return matching

    def kill(self, what: str, chance: random.Random) -> None:
        match what:
            case "postgres":
                crash(self.postgres)
            case "broker":
                self.broker.kill9()
                self.broker.start()
            case _:
                self.kill_process(what, chance)

    def kill_process(self, what: str, chance: random.Random) -> None:
        matching = wait_until(lambda: self.supervise() or self.processes_of(what), what=f"a {what} to kill")
        with suppress(psutil.NoSuchProcess):
            chance.choice(matching).kill()

    def processes_of(self, what: str) -> list[psutil.Process]:
        is_one = {
            "driver": lambda words: any(word.endswith("stream.py") for word in words) and "java" not in words[0],
            "jvm": lambda words: bool(words) and words[0].endswith("java"),
            "worker": lambda words: any("worker_daemon" in word for word in words),
        }[what]
        return self.processes(is_one)

    def end(self) -> None:
        """Stops the newest driver; the older ones end by themselves, because they are superseded."""
        *older, newest = self.runs
        newest.send_signal(signal.SIGTERM)
        assert newest.wait(PATIENCE_SECONDS) == 0, self.log.read_text()[-3000:]
        for run in older:
            run.wait(PATIENCE_SECONDS)


@contextmanager
def running(directory: Path) -> Iterator[Stream]:
    with LogbusBroker(directory / "broker") as broker, EmbeddedPostgres(directory / "pg", settings=SURVIVES_A_KILL) as server:
        url = server.create_database("stream")
        engine = connect(url)
        create_ledger(engine)
        stream = Stream(broker, server, url, engine, directory / "run.out")
        try:
            yield stream
        finally:
            for process in [*stream.processes(lambda words: True), *stream.runs]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            engine.dispose()


@pytest.fixture
def stream() -> Iterator[Stream]:
    with (
        tempfile.TemporaryDirectory(prefix="logbus-test-", ignore_cleanup_errors=True) as directory,
        running(Path(directory)) as it,
    ):
        yield it


def define(stream: Stream) -> None:
    columns = {"at": "timestamptz", "host": "text", "bytes": "bigint"}
    pipeline = Pipeline(name="hosts", topic="hosts", table="rows", parse="json", settings={"columns": columns})
    log = Topics(Client({"bootstrap.servers": stream.broker.bootstrap}))
    Ledger(stream.engine).register(pipeline, log, utc_now())
    measures = {"requests": count(), "bytes": sum_of("bytes")}
    definition = define_stream(
        "hosts",
        pipeline,
        keys=["host"],
        measures=measures,
        event_time="at",
        trigger="100ms",
        max_offsets_per_trigger=EPOCH_OFFSETS,
    )
    stream_ledger.define(stream.engine, definition, utc_now())
    with stream.engine.begin() as connection:
        connection.execute(text(WATCHED))


def test_a_stream_is_exact_whatever_is_killed(stream: Stream) -> None:
    seed = int(os.environ.get("LOGBUS_SOAK_SEED", "2011"))
    requests, chance, killed = Requests(seed), random.Random(seed), Counter[str]()
    create_topic(stream.broker.bootstrap, "hosts", partitions=PARTITIONS, config={"retention.ms": "-1"})
    send(stream.broker.bootstrap, "hosts", requests.records(), {"queue.buffering.max.messages": RECORDS + 1})
    define(stream)
    reached = 0
    for number in range(KILLS):
        reached += chance.randint(0, EPOCHS_BETWEEN_KILLS)
        wait_until(lambda: stream.progress() >= reached, what=f"epoch {reached}")  # noqa: B023
        what = chance.choice(["driver", "jvm", "worker", "postgres", "broker"])
        killed[what] += 1
        stream.kill(what, chance)
        if number % KILLS_PER_RIVAL == 0:
            stream.start()
    wait_until(lambda: stream.progress() > 0 and is_read(stream) and has_begun(stream), what="the end of the topic")
    stream.end()
    refuse_wrong(stream, requests)
    assert sum(killed.values()) == KILLS
    print(f"{dict(killed)}, {len(stream.runs)} drivers")


def test_a_driver_whose_jvm_is_killed_while_broker_and_warehouse_are_away_ends(stream: Stream) -> None:
    create_topic(stream.broker.bootstrap, "hosts", partitions=PARTITIONS)
    send(stream.broker.bootstrap, "hosts", [{"value": b'{"at": 0, "host": "web-1", "bytes": 1}', "partition": 0}])
    define(stream)
    wait_until(lambda: stream.progress() > 0, what="an epoch")
    (driver,), (jvm,) = stream.processes_of("driver"), stream.processes_of("jvm")
    stream.broker.kill9()
    stream.postgres.stop()
    wait_until(lambda: "trying again" in stream.log.read_text(), what="a driver that waits")
    jvm.kill()
    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, what="the driver's end")


def is_read(stream: Stream) -> bool:
    with suppress(SQLAlchemyError):
        return sum(stream_ledger.positions(stream.engine, "hosts").values()) == RECORDS
    return False


def has_begun(stream: Stream) -> bool:
    """Whether the newest driver is the one that may commit."""
    with suppress(SQLAlchemyError), stream.engine.connect() as connection:
        driver = connection.execute(text("select driver from begun order by owner desc limit 1")).scalar()
        return driver == f"driver {len(stream.runs)}"
    return False


def refuse_wrong(stream: Stream, requests: Requests) -> None:
    with stream.engine.connect() as connection:
        shown = connection.execute(text("select extract(epoch from window_start) / 60, host, requests, bytes from hosts")).all()
        parts = connection.execute(
            text("select partition, start_offset, end_offset, read_count, hour from logbus.epoch_part order by 1, 2")
        ).all()
    assert {(int(minute), host): [count, int(size)] for minute, host, count, size in shown} == requests.truth
    ends = dict.fromkeys(range(PARTITIONS), 0)
    by_hour = Counter[datetime]()
    for partition, start, end, read, hour in parts:
        assert (start, read) == (ends[partition], end - start)
        ends[partition] = end
        by_hour[hour] += read
    assert set(ends.values()) == {RECORDS // PARTITIONS}
    assert len(by_hour) == HOURS
    with stream.engine.connect() as connection:
        begun = {row.owner: row.driver for row in connection.execute(text("select owner, driver from begun"))}
        committed = connection.execute(text("select epoch, owner, driver from committed order by epoch")).all()
    assert len({driver for _, _, driver in committed}) > 1
    assert [(epoch, begun[owner]) for epoch, owner, _ in committed] == [(epoch, driver) for epoch, _, driver in committed]
