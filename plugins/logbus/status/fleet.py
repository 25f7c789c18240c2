"""The lag of all pipelines at once: the figures of `logbus.status.lag`, from one reading of the ledger and few requests.

The same code counts: it runs on answers that are there already, and when it needs one that is not, the question is recorded and
the pipeline waits. When all wait (or are done), the questions are sent together, for all topics in one request to each broker,
and all pipelines continue. So the number of rounds is that of the longest chain of questions of one pipeline, however many
pipelines there are. End offsets are asked for while the ledger's windows are read; what the windows let us guess is asked in
the second round.

What only reading records would show (a timestamp from the future hides the end of the hours) is not read here: such a pipeline
has a problem, and `logbus lag` finds the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Engine

from logbus import errors, model
from logbus.kafka.topic_list import Kind, LogBatches, Question, TopicDescription
from logbus.kafka.topics import OffsetAndTimestamp, TopicFacts
from logbus.status import ledger_facts, retention_plan, retention_run
from logbus.status.lag import Lag, lag_over
from logbus.status.ledger_facts import Loaded
from logbus.windows import missing, pipeline_chains, registration, sql_errors
from logbus.windows.rows import Row, pipeline_rows, to_pipeline

FUTURE_STAMPS = "a record's timestamp is in the future and hides where the hours end: `logbus lag --pipeline {name}` finds it"
TOPIC_GONE = "the topic {topic} is gone: name the right broker, or recreate the topic and `logbus pipeline rebase {name}`"
NO_TOPIC = "the topic {topic} does not exist yet: create it, or ship something to it"

OK, TOPIC_MISSING, TOPIC_RECREATED, FUTURE, REFUSED = "ok", "topic_missing", "topic_recreated", "future_timestamps", "refused"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReading:
    """A pipeline, what of it is not loaded, how far it is behind. `starts` and `ends` are the topic's offsets by partition,
    empty if the broker did not report them."""

    pipeline: model.Pipeline
    chain: pipeline_chains.PipelineChain
    lag: Lag
    topic_id: str | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    policy: retention_plan.RetentionPolicy | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why its lag is not known, or `OK`: one of few values, as labels should be. The message is `lag.problem`."""
        if self.lag.problem is None:
            return OK
        if self.topic_id is None:
            return TOPIC_MISSING
        if self.chain.is_other_topic:
            return TOPIC_RECREATED
        return FUTURE if self.lag.problem == FUTURE_STAMPS.format(name=self.pipeline.name) else REFUSED


class Unanswered(Exception):
    """These questions have not been asked yet."""

    def __init__(self, *questions: Question) -> None:
        super().__init__(*questions)
        self.questions = questions


class Answers:
    """What is known of a log so far, for `lag_over` to count from. Answers that are errors are raised."""

    def __init__(self, topics: Mapping[str, TopicDescription | errors.LogbusError]) -> None:
        self.topics = topics
        self.known: dict[Question, Any] = {}

    def find(self, kind: Kind, topic: str, detail: str | int = "") -> Any:
        question = Question(kind, topic, detail)
        if question not in self.known:
            raise Unanswered(question)
        return _raised_if_error(self.known[question])

    def topic(self, name: str) -> TopicFacts:
        places: TopicDescription = _raised_if_error(self.topics[name])
        return places.facts

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        offsets = self.find(Kind.START, topic)
        return {part: offsets[part] for part in partitions}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        offsets = self.find(Kind.END, topic, isolation_level)
        return {part: offsets[part] for part in partitions}

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, OffsetAndTimestamp]:
        records = self.find(Kind.AT, topic, timestamp_ms)
        return {part: records[part] for part in partitions if part in records}

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, OffsetAndTimestamp]]:
        stamps = list(timestamps_ms)
        questions = [Question(Kind.AT, topic, stamp) for stamp in stamps]
        if unknown := [question for question in questions if question not in self.known]:
            raise Unanswered(*unknown)
        return {stamp: self.first_at_or_after(topic, partitions, stamp) for stamp in stamps}

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        raise NeedsReading(f"{topic}-{partition} from {start_offset} to {end_offset} would have to be read")

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, model.Witness]:
        raise NeedsReading(f"records of {topic} would have to be read")

    def cluster_id(self) -> str | None:
        return None

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        values = self.find(Kind.SETTINGS, topic)
        return {name: values[name] for name in names if name in values}


class NeedsReading(errors.UserError):
    """Only reading records would answer this."""


def _raised_if_error(answer: Any) -> Any:
    if isinstance(answer, errors.LogbusError):
        raise answer
    return answer


def read_fleet(engine: Engine, log: LogBatches, now: datetime) -> list[PipelineReading]:
    """All pipelines by name. `BrokerUnavailable` if the broker answers nothing; an error of one topic is its lag's problem."""
    with engine.connect() as connection:
        rows, policies = pipeline_rows(connection), retention_run.policies_by_topic(connection)
    return read_pipelines(engine, log, now, rows, policies)


def read_pipelines(
    engine: Engine, log: LogBatches, now: datetime, rows: Sequence[Row], policies: Mapping[str, retention_plan.RetentionPolicy]
) -> list[PipelineReading]:
    """The same for these rows of the ledger, where retention is managed by these policies."""
    pipelines = {row["name"]: to_pipeline(row) for row in rows}
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(read_chains, engine, rows)
        answers, partitions = _with_ends(log, list(pipelines.values()))
        loaded = loading.result()
    chains = {row["name"]: _on_topic(loaded[row["name"]], row, answers) for row in rows}
    existing = [pipeline for pipeline in pipelines.values() if pipeline.topic in partitions]
    guessed = {question for pipeline in existing for question in _second_questions(pipeline, chains[pipeline.name], now)}
    answers.known |= log.answers(guessed, partitions)

    def count(name: str) -> Lag:
        return lag_or_problem(pipelines[name], chains[name], answers, policies.get(pipelines[name].topic), now)

    lags = _compute_all(list(pipelines), count, lambda questions: answers.known.update(log.answers(questions, partitions)))
    return [reading(pipelines[name], chains[name], lags[name], answers, policies) for name in sorted(pipelines)]


def read_chains(engine: Engine, rows: Sequence[Row]) -> dict[str, pipeline_chains.PipelineChain]:
    with engine.connect() as connection:
        return pipeline_chains.load_chains(connection, rows, pipeline_chains.is_loaded())


def _with_ends(log: LogBatches, pipelines: Sequence[model.Pipeline]) -> tuple[Answers, dict[str, Sequence[int]]]:
    """The topics, with the end offsets of those that are there, and their partitions. `BrokerUnavailable` is raised here."""
    log.topic_names()
    answers = Answers(log.topics(pipeline.topic for pipeline in pipelines))
    partitions: dict[str, Sequence[int]] = {
        name: topic.facts.partitions for name, topic in answers.topics.items() if isinstance(topic, TopicDescription)
    }
    ends = {
        Question(Kind.END, pipeline.topic, pipeline.isolation_level) for pipeline in pipelines if pipeline.topic in partitions
    }
    answers.known |= log.answers(ends, partitions)
    return answers, partitions


def _on_topic(chain: pipeline_chains.PipelineChain, row: Row, answers: Answers) -> pipeline_chains.PipelineChain:
    """The chain, marked if the broker has another topic of that name."""
    topic = answers.topics[row["topic"]]
    return replace(chain, is_other_topic=isinstance(topic, TopicDescription) and topic.topic_id != row["topic_id"])


def _second_questions(pipeline: model.Pipeline, chain: pipeline_chains.PipelineChain, now: datetime) -> Iterator[Question]:
    """What a pipeline will ask after its end offsets: end offsets come before first records. The oldest hour behind is most often
    that of the first window that is not loaded."""
    until = pipeline.closed_until(now)
    instants = {until}
    if chain.windows and until >= pipeline.grid.after(chain.windows[-1].interval.end, missing.PROBED_FROM):
        instants.add(chain.windows[-1].interval.end)
    oldest = next((window for window in chain.windows if window.loaded_attempt is None), None)
    if oldest is not None:
        instants.add(oldest.interval.start)
    for instant in instants:
        yield Question(Kind.AT, pipeline.topic, model.milliseconds(instant))
    yield Question(Kind.START, pipeline.topic)
    yield Question(Kind.SETTINGS, pipeline.topic)


def _compute_all(
    names: Sequence[str], compute: Callable[[str], Result], ask: Callable[[set[Question]], None]
) -> dict[str, Result]:
    """Computes all; the questions that they need are asked together."""
    done: dict[str, Result] = {}
    while len(done) < len(names):
        questions = set[Question]()
        for name in names:
            if name not in done:
                try:
                    done[name] = compute(name)
                except Unanswered as missing:
                    questions.update(missing.questions)
        if questions:
            ask(questions)
    return done


def lag_or_problem(
    pipeline: model.Pipeline,
    chain: pipeline_chains.PipelineChain,
    answers: Answers,
    policy: retention_plan.RetentionPolicy | None,
    now: datetime,
) -> Lag:
    """What `lag_of` returns; an error is the lag's problem."""
    try:
        return lag_over(pipeline, chain, answers, now, answers.topic(pipeline.topic).partitions, policy)
    except NeedsReading:
        problem = FUTURE_STAMPS.format(name=pipeline.name)
    except errors.TopicMissing:
        # If hours are frozen, the topic existed: recreated it is another one.
        problem = (TOPIC_GONE if chain.windows else NO_TOPIC).format(name=pipeline.name, topic=pipeline.topic)
    except errors.LogbusError as error:
        problem = str(error)
    return Lag(pipeline=pipeline.name, topic=pipeline.topic, records_behind={}, problem=problem)


def reading(
    pipeline: model.Pipeline,
    chain: pipeline_chains.PipelineChain,
    lag: Lag,
    answers: Answers,
    policies: Mapping[str, retention_plan.RetentionPolicy],
) -> PipelineReading:
    places = answers.topics[pipeline.topic]

    def known(kind: Kind, detail: str = "") -> Mapping[Any, Any]:
        answer = answers.known.get(Question(kind, pipeline.topic, detail), {})
        return {} if isinstance(answer, errors.LogbusError) else answer

    return PipelineReading(
        pipeline=pipeline,
        chain=chain,
        lag=lag,
        topic_id=places.topic_id if isinstance(places, TopicDescription) else None,
        starts=known(Kind.START),
        ends=known(Kind.END, pipeline.isolation_level),
        policy=policies.get(pipeline.topic),
        settings=known(Kind.SETTINGS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """All pipelines as rows of the ledger; `policies` by topic; by pipeline its Dags, what it has loaded so far, and where the
    last of its windows with records ends."""

    rows: Sequence[Row]
    policies: Mapping[str, retention_plan.RetentionPolicy]
    dag_ids: Mapping[str, Sequence[str]]
    loaded: Mapping[str, Loaded]
    newest_ends: Mapping[str, datetime]
    tables: Sequence[ledger_facts.TableFacts]  # that something else loads, as they were last audited

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.rows]

    @property
    def pipelines(self) -> list[model.Pipeline]:
        return [to_pipeline(row) for row in self.rows]


def read_registered(engine: Engine, now: datetime) -> Registered:
    with engine.connect() as connection:
        return Registered(
            rows=pipeline_rows(connection),
            policies=retention_run.policies_by_topic(connection),
            dag_ids=registration.dags_by_pipeline(connection),
            loaded=ledger_facts.loaded_by_pipeline(connection, now),
            newest_ends=ledger_facts.newest_ends(connection),
            tables=ledger_facts.read_tables(connection),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReading:
    """All pipelines by name, and when they were read."""

    at: datetime
    pipelines: Sequence[PipelineReading]


def read_lags(engine: Engine, log: LogBatches, now: datetime) -> LagReading:
    """All pipelines. `BrokerUnavailable` where the broker does not answer: then no pipeline's lag is known."""
    with sql_errors.ledger_errors():
        return LagReading(at=now, pipelines=read_fleet(engine, log, now))
