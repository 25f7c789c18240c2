"""Logins of Spark's tasks, on our broker and a PostgreSQL with roles: what the secrets of a job that runs are worth, and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AclOperation
from logbus.errors import AccessDenied
from logbus.kafka import acls, users
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads import roles
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.loads.history import window_history
from logbus.status import ledger_checks
from logbus.waiting import wait_until
from logbus_broker.setting_parsers import AUTHORIZERS
from logbus_spark import application
from logbus_spark.application import LoadState
from sqlalchemy import Engine, text

from tests.support import in_process
from tests.support.ledgers import NOW, at
from tests.support.logins import OTHER_USER, USER
from tests.support.postgres import new_database
from tests.support.real_pipeline import RealPipeline
from tests.support.secured_logbus import OPEN, SecuredLogbus
from tests.support.topics import create_topic

DENIED, REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredLogbus]:
    """Anonymous clients administrate it; the driver's user may read what it loads, and is no administrator."""
    rights = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS"}
    with SecuredLogbus(tmp_path_factory.mktemp("broker"), settings=rights, listeners=(OPEN, "SASL_PLAINTEXT")) as running:
        rules = acls.Acls(Client({"bootstrap.servers": running.address(OPEN)}))
        every = [acls.Resource(kind=acls.KINDS[kind], name=acls.ANY_NAME) for kind in ("topic", "group")]
        rules.add([acls.allowing(f"User:{USER}", AclOperation.READ, resource) for resource in every])
        yield running


@pytest.fixture
def engine(postgres_server: EmbeddedPostgres) -> Iterator[Engine]:
    """The loader's."""
    with new_database(postgres_server) as url:
        superuser = connect(url)
        roles.prepare(superuser)
        loader = connect(superuser.url.set(username=roles.LOADER))
        yield loader
        for one in (loader, superuser):
            one.dispose()


@pytest.fixture
def pipeline(broker: SecuredLogbus, engine: Engine) -> RealPipeline:
    """Two frozen hours: of partition 0 the offsets 0 to 2 and 3 to 5, sent one by one."""
    settings = {**broker.client_settings(USER, "SCRAM-SHA-512"), "log_level": 0}
    made = RealPipeline(broker.address(OPEN), engine, client=settings)
    for number in range(6):
        made.send([(10 + number / 3 + 0.1, b"line %d" % number)])
    made.send([(10.5, b"of the other partition")], 1)
    made.freeze(10, 11)
    return made


class Leaked:
    """What a task was given, in other hands: a consumer and a session that log in while the job runs, and stay."""

    def __init__(self, client_config: Mapping[str, Any], uri: str, table: str, topic: str) -> None:
        self.client_config, self.uri, self.table, self.topic = client_config, uri, table, topic
        self.codes: list[int] = []
        self._consumer = self._connect()
        self._session = psycopg.connect(uri, autocommit=True)
        assert read(self._consumer, topic, 0) == 0

    def _connect(self) -> Consumer:
        settings = {
            "group.id": users.GROUP_OF_READERS.name,
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 1,
            "log_level": 0,
        }
        return Consumer({**self.client_config, **settings, "error_cb": lambda error: self.codes.append(error.code())})

    def fetch(self, offset: int, partition: int = 0) -> int:
        """By another consumer: it tells the same refusal once."""
        other = self._connect()
        code = read(other, self.topic, offset, partition)
        other.close()
        return code

    def do(self, statement: str) -> str | None:
        """The class of the error of a statement; None: it was carried out."""
        try:
            self._session.execute(statement)  # type: ignore[call-overload]
        except psycopg.Error as error:
            return type(error).__name__
        return None

    def insert(self, table: str | None = None) -> str | None:
        return self.do(f"insert into {table or self.table} default values")

    def assert_void(self) -> None:
        """On what is open, and with a new login."""
        assert read(self._consumer, self.topic, 0) == DENIED
        assert self.insert() in ("InsufficientPrivilege", "UndefinedTable")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(self.uri)
        self.codes.clear()
        stranger = self._connect()
        wait_until(lambda: stranger.consume(1, 0.1) or REFUSED in self.codes, what="the refusal of a login", poll_seconds=0)
        assert REFUSED in self.codes
        stranger.close()

    def close(self) -> None:
        self._consumer.close()
        self._session.close()


def read(consumer: Consumer, topic: str, offset: int, partition: int = 0) -> int:
    """The code of an error, 0 if there is a record."""
    consumer.assign([TopicPartition(topic, partition, offset)])
    (message,) = wait_until(lambda: consumer.consume(1, 0.1), what="a record, or a refusal", timeout_seconds=20, poll_seconds=0)
    consumer.unassign()
    return int(message.error().code()) if message.error() else 0


Arrange = Callable[[Callable[[Leaked], None] | None], None]


@pytest.fixture
def during_job(monkeypatch: pytest.MonkeyPatch) -> Arrange:
    """Has something done by who has a job's secrets, before its tasks run."""

    def arrange(act: Callable[[Leaked], None] | None) -> None:
        pending = iter([act] if act else [])

        def run_job(pipeline: Any, windows: Any, job: Any, client_config: Any, limits: Any) -> Any:
            for act in pending:
                staged = next(iter(job.windows.values()))
                act(Leaked(client_config, job.sink_options["uri"], f"logbus_staging.{staged.dead_letter_table}", job.topic))
            return in_process.run_job(pipeline, windows, job, client_config, limits)

        in_process.replace_spark(monkeypatch)
        monkeypatch.setattr(application, "run_job", run_job)

    return arrange


def notes_of(pipeline: RealPipeline, number: int) -> list[str | None]:
    return [record.task_logins for record in window_history(pipeline.engine, pipeline.name, at(number)).attempts]


def left(pipeline: RealPipeline) -> tuple[int, int, list[str]]:
    """Users of the driver's own, roles of tasks, and what doctor says about them."""
    administrator = Client({"bootstrap.servers": pipeline.bootstrap})
    owned = [user for user in users.ScramUsers(administrator).mechanisms() if user.startswith(f"{USER}/")]
    owned += [rule.principal for rule in acls.Acls(administrator).matching() if rule.principal.startswith(f"User:{USER}/")]
    findings = ledger_checks.check_all(pipeline.ledger, pipeline.log, pipeline.ledger.pipelines(), NOW)
    with pipeline.engine.connect() as connection:
        count = connection.scalar(text("select count(*) from pg_roles where rolname like 'logbus_task\\_%'"))
    return len(owned), int(count or 0), [finding.message for finding in findings if "tasks" in finding.message]


def test_a_jobs_secrets_are_worth_its_windows_while_it_runs_and_nothing_afterwards(
    pipeline: RealPipeline, during_job: Arrange
) -> None:
    create_topic(pipeline.bootstrap, f"{pipeline.name}_other", partitions=1)
    during_job(None)
    pipeline.load(11)
    thieves: list[Leaked] = []

    def steal(leaked: Leaked) -> None:
        thieves.append(leaked)
        (other,) = pipeline.ledger.begin_attempts(pipeline.name, [at(11)], "another", 1, NOW)
        with pipeline.engine.begin() as connection:
            connection.execute(text(f"create table logbus_staging.{other.staging_table} (a int)"))
        assert [leaked.fetch(offset) for offset in range(5)] == [0, 0, 0, DENIED, DENIED]
        assert (leaked.fetch(0, partition=1), leaked.fetch(1, partition=1)) == (0, DENIED)
        topics = Topics(Client(leaked.client_config))
        assert topics.topic(pipeline.name).partitions == (0, 1)
        with pytest.raises(AccessDenied):
            topics.topic(f"{pipeline.name}_other")
        refused = "InsufficientPrivilege"
        for table in (pipeline.name, f"logbus_staging.{other.staging_table}", "logbus.attempt", "logbus.dead_letter"):
            assert leaked.insert(table) == refused, table
        assert leaked.insert() == "NotNullViolation", "it is allowed"
        for statement in (
            f"select from {leaked.table}",
            f"delete from {leaked.table}",
            "create role mallory",
            "set role logbus_owner",
        ):
            assert leaked.do(statement) == refused, statement
        assert leaked.do("select logbus.make_task_login('logbus_task_0123456789abcdef', 'x')") == refused

    during_job(steal)
    (outcome,) = pipeline.load(10)
    assert outcome.state is LoadState.COMMITTED, outcome.error
    assert outcome.counts is not None
    assert outcome.counts.loaded == 4
    (leaked,) = thieves
    leaked.assert_void()
    leaked.close()
    assert notes_of(pipeline, 10) == ["of their own"]
    assert left(pipeline) == (0, 0, [])


def test_a_newer_attempt_takes_the_logins_of_the_older_one(pipeline: RealPipeline, during_job: Arrange) -> None:
    def overtake(leaked: Leaked) -> None:
        (outcome,) = pipeline.load(10)
        assert outcome.state is LoadState.COMMITTED
        leaked.assert_void()
        leaked.close()

    during_job(overtake)
    (outcome,) = pipeline.load(10)
    assert outcome.state is LoadState.SUPERSEDED
    assert left(pipeline) == (0, 0, [])


def test_what_a_killed_driver_leaves_is_named_and_deleted_by_the_next_load(pipeline: RealPipeline, during_job: Arrange) -> None:
    during_job(None)
    attempts = pipeline.ledger.begin_attempts(pipeline.name, [at(10)], "killed", 1, NOW)
    logins = roles.TaskLogins(pipeline.engine, Client(pipeline.client_config))
    job = logins.for_job(attempts, pipeline.ledger.windows_at(pipeline.name, [at(10)]))
    job.__enter__()
    assert left(pipeline) == (4, 1, []), "a user, its two ranges and group, a role; the attempt is running"
    pipeline.ledger.fail_attempts(attempts, "killed", NOW)
    key = attempts[0].key
    assert left(pipeline) == (4, 1, [f"logins of tasks whose driver was killed: {USER}/{key}, logbus_task_{key}"])
    assert [outcome.state for outcome in pipeline.load(11)] == [LoadState.COMMITTED]
    assert left(pipeline) == (0, 0, [])
    job.__exit__(None, None, None)


def test_where_there_are_no_such_logins_the_tasks_have_the_drivers_and_the_window_says_why(
    broker: SecuredLogbus, warehouse_url: str, during_job: Arrange
) -> None:
    engine = connect(warehouse_url)
    pipeline = RealPipeline(broker.address(OPEN), engine)
    pipeline.send([(10, b"line")])
    during_job(None)
    assert [outcome.state for outcome in pipeline.load(10)] == [LoadState.COMMITTED]
    assert notes_of(pipeline, 10) == [f"none of their own: {roles.NO_LOGIN}; {roles.NO_ROLES}"]
    pipeline.client = broker.client_settings(OTHER_USER, "SCRAM-SHA-512")  # who may not even describe the topic
    logins = roles.TaskLogins(engine, Client(pipeline.client_config))
    attempts = pipeline.ledger.begin_attempts(pipeline.name, [at(10)], "another", 1, NOW)
    with logins.for_job(attempts, pipeline.ledger.windows_at(pipeline.name, [at(10)])) as login:
        assert login == roles.TaskLogin(client_config=pipeline.client_config, warehouse_url=engine.url)
    (_, note) = notes_of(pipeline, 10)
    assert note == f"none of their own: the broker lets {OTHER_USER} make no users of its own; {roles.NO_ROLES}"
    with engine.begin() as connection:
        connection.execute(text('update logbus."window" set loaded_attempt = 2 where loaded_attempt = 1'))
    assert left(pipeline)[2] == [f"Spark's tasks have the driver's rights: {str(note).removeprefix('none of their own: ')}"]
    engine.dispose()
