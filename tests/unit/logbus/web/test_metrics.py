"""Figures of groups and partitions, and which are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from logbus.expressions import count
from logbus.kafka.groups import GroupMember, GroupReading
from logbus.model import Grid, Pipeline
from logbus.status.fleet import FUTURE_STAMPS, LagReading, PipelineReading
from logbus.status.lag import Lag
from logbus.status.ledger_facts import LedgerReading, PipelineFacts, TableFacts
from logbus.streams.definition import define_stream
from logbus.streams.listing import StreamStatus
from logbus.web import metrics
from logbus.web.exporter import families
from logbus.web.metrics import CATALOG, ExportedMetric, KafkaReading, PartitionReading
from logbus.windows.pipeline_chains import PipelineChain

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MEMBER = GroupMember(member_id="c-1", client_id="c", host="10.0.0.7", assignments=(("t", 0),))


def partition(topic: str, number: int, end: int | None, **changes: int | None) -> PartitionReading:
    facts = {"leader": 1, "replicas": 3, "in_sync": 3, "start_offset": 0, **changes}
    return PartitionReading(topic=topic, partition=number, end_offset=end, **facts)  # type: ignore[arg-type]


def group(name: str, committed: dict[tuple[str, int], int], *members: GroupMember) -> GroupReading:
    return GroupReading(name=name, state="Stable", members=members, committed=committed)


def kafka(*groups: GroupReading, waiting: dict[tuple[str, tuple[str, int]], float] | None = None) -> dict[object, float]:
    parts = (partition("t", 0, 10), partition("t", 1, 20, in_sync=2), partition("u", 0, None, leader=None, start_offset=None))
    reading = KafkaReading(cluster_id="id", brokers={1: "b:9092"}, partitions=parts, groups=groups, waiting=waiting or {})
    return kept(metrics.kafka_samples(reading, "mine"))


def kept(found: Iterable[tuple[ExportedMetric, tuple[str, ...], float | None]]) -> dict[object, float]:
    """The exported values, by metric and labels."""
    listed = list(found)
    assert all(len(labels) == len(metric.labels) for metric, labels, _ in listed)
    return {(metric, *labels): value for metric, labels, value in listed if value is not None}


def test_a_group_has_its_lag_in_both_spellings() -> None:
    one = group("g", {("t", 0): 4, ("t", 1): 20}, MEMBER)
    found = kafka(one, waiting={("g", ("t", 0)): 12.0, ("g", ("t", 1)): 0.0})
    assert found[metrics.CONSUMER_LAG, "g", "t", "0"] == 6
    assert found[metrics.CONSUMER_LAG_SUM, "g", "t"] == 6
    assert found[metrics.GROUP_CURRENT_SUM, "g", "t"] == 24
    assert found[metrics.GROUP_LAG, "mine", "g", "t", "0", "10.0.0.7", "c-1", "c"] == 6
    assert found[metrics.GROUP_LAG, "mine", "g", "t", "1", "", "", ""] == 0
    assert found[metrics.GROUP_LAG_SECONDS, "mine", "g", "t", "0", "10.0.0.7", "c-1", "c"] == 12.0
    assert found[metrics.GROUP_MAX_LAG, "mine", "g"] == found[metrics.GROUP_SUM_LAG, "mine", "g"] == 6
    assert found[metrics.GROUP_MAX_LAG_SECONDS, "mine", "g"] == 12.0
    assert found[metrics.MEMBERS, "g"] == 1


def test_lag_in_seconds_is_absent_where_it_is_not_known() -> None:
    found = kafka(group("g", {("t", 0): 4, ("t", 1): 20}), waiting={("g", ("t", 1)): 0.0})
    assert (metrics.GROUP_LAG_SECONDS, "mine", "g", "t", "0", "", "", "") not in found
    assert found[metrics.GROUP_LAG_SECONDS, "mine", "g", "t", "1", "", "", ""] == 0.0
    assert (metrics.GROUP_MAX_LAG_SECONDS, "mine", "g") not in found


def test_a_group_without_offsets_or_with_those_of_a_topic_that_is_gone_has_members_only() -> None:
    found = kafka(group("new", {}, MEMBER, MEMBER), group("old", {("x", 0): 3}))
    shown = {key for key in found if isinstance(key, tuple) and ("new" in key or "old" in key)}
    assert shown == {(metrics.MEMBERS, "new"), (metrics.MEMBERS, "old")}


def test_a_partition_that_cannot_be_read_has_no_offsets_and_no_leader() -> None:
    found = kafka()
    assert found[metrics.PARTITIONS, "u"] == 1
    assert not {metrics.CURRENT_OFFSET, metrics.OLDEST_OFFSET, metrics.LEADER} & {
        key[0] for key in found if key[1:] == ("u", "0")
    }
    assert found[metrics.UNDER_REPLICATED, "t", "1"] == 1
    assert found[metrics.UNDER_REPLICATED, "t", "0"] == 0


def test_a_commit_behind_the_end_is_no_negative_lag() -> None:
    found = kafka(group("g", {("t", 0): 11}))
    assert found[metrics.CONSUMER_LAG, "g", "t", "0"] == 0


def lag(topic_id: str | None = "id", **changes: Any) -> dict[object, float]:
    pipeline = Pipeline(name="p", topic="t", table="t", parse="lines")
    chain = PipelineChain(pipeline="p", grid=Grid(), anchors={}, windows=())
    values = Lag(**{"pipeline": "p", "topic": "t", "records_behind": {}, **changes})
    reading = PipelineReading(pipeline=pipeline, chain=chain, lag=values, topic_id=topic_id)
    return kept(metrics.lag_samples(LagReading(at=NOW, pipelines=[reading])))


def test_a_pipeline_whose_lag_is_not_known_shows_why_and_nothing_else() -> None:
    for topic_id, problem, reason in (
        (None, "the topic t is gone", "topic_missing"),
        ("id", FUTURE_STAMPS.format(name="p"), "future_timestamps"),
        ("id", "not allowed", "refused"),
    ):
        assert lag(topic_id, problem=problem) == {(metrics.PIPELINE_UP, "p", "t", reason): 0}


def test_a_pipeline_that_is_behind_shows_how_far_and_how_long_it_has() -> None:
    times = {"oldest_record_at": NOW - timedelta(hours=3), "expires_at": NOW + timedelta(hours=5)}
    found = lag(records_behind={0: 3, 1: 4}, hours_behind=2, expires_by="retention.ms", **times)
    assert found[metrics.PIPELINE_UP, "p", "t", "ok"] == 1
    assert found[metrics.HOURS_BEHIND, "p", "t"] == 2
    assert found[metrics.RECORDS_BEHIND, "p", "t"] == 7
    assert found[metrics.OLDEST_AGE, "p", "t"] == 3 * 3600
    assert found[metrics.UNTIL_TAKEN, "p", "t", "retention.ms"] == 5 * 3600


def test_nobody_knows_when_a_limit_by_size_bites() -> None:
    found = lag(records_behind={0: 3}, hours_behind=1, expires_by="retention.bytes")
    assert metrics.UNTIL_TAKEN not in {key[0] for key in found if isinstance(key, tuple)}
    assert found[metrics.OLDEST_AGE, "p", "t"] == 0


def test_a_pipeline_that_has_just_been_registered_has_counters_at_zero_and_no_instants() -> None:
    """Counters start at zero, or the first increase would be missed."""
    found = kept(metrics.ledger_samples(LedgerReading(pipelines={"p": PipelineFacts(name="p", topic="t")})))
    assert {found[metrics.RECORDS, "p", "t", outcome] for outcome in ("loaded", "dead_lettered", "filtered")} == {0}
    assert {found[metrics.ATTEMPTS, "p", "t", state] for state in ("committed", "failed", "superseded")} == {0}
    assert {found[metrics.WINDOWS, "p", "t", state] for state in ("frozen", "loading", "loaded", "audited")} == {0}
    assert not {metrics.LAST_AUDIT, metrics.LAST_LOAD, metrics.LOADED_UNTIL, metrics.RETENTION_RUN} & {key[0] for key in found}


def test_a_table_of_others_has_hours_by_verdict() -> None:
    hours = {"exact": 2, "wrong": 3}
    facts = TableFacts(table="x", topic="t", audited_at=NOW, foreign=1, foreign_in_hours=6, hours=hours, missing=4, doubled=5)
    samples = kept(metrics.ledger_samples(LedgerReading(pipelines={}, tables=[facts])))
    assert (samples[metrics.TABLE_HOURS, "x", "t", "wrong"], samples[metrics.TABLE_MISSING, "x", "t"]) == (3, 4)
    assert samples[metrics.TABLE_FOREIGN_HOURS, "x", "t"] == 6


def stream_status(**changes: Any) -> StreamStatus:
    stream = define_stream("live", "p", keys=[], measures={"count": count()})
    values: dict[str, Any] = {
        **{"stream": stream, "topic": "t", "isolation_level": "read_committed", "at": NOW, "state": "running", "owner": 1},
        **{"run_id": "run", "began_at": NOW, "heartbeat_at": NOW - timedelta(seconds=2), "ended_at": None, "error": None},
        **{"positions": {0: 7}, "epochs": 5, "committed_at": NOW, "newest_timestamp": NOW - timedelta(minutes=1)},
        **{"read_lately": 4, "proven": 2, "different": 0, "behind": 1},
    }
    return StreamStatus(**{**values, **changes})


def test_a_streams_lag_needs_the_ends_of_its_pipelines_topic_and_the_rest_does_not() -> None:
    labels = ("live", "p")
    samples = kept(metrics.stream_samples([stream_status()], {"p": {0: 9}, "q": {0: 100}}))
    assert (samples[metrics.STREAM_LAG_RECORDS, *labels], samples[metrics.STREAM_LAG, *labels]) == (2, 60)
    assert (samples[metrics.STREAM_STATE, *labels, "running"], samples[metrics.STREAM_HEARTBEAT, *labels]) == (1, 2)
    assert {state: samples[metrics.STREAM_HOURS, *labels, state] for state in ("proven", "different", "behind")} == {
        "proven": 2,
        "different": 0,
        "behind": 1,
    }
    without_broker = kept(metrics.stream_samples([stream_status(state="stopped")], {}))
    assert not {metrics.STREAM_LAG_RECORDS, metrics.STREAM_LAG, metrics.STREAM_HEARTBEAT} & {key[0] for key in without_broker}
    assert without_broker[metrics.STREAM_EPOCHS, *labels] == 5


def test_a_target_that_could_not_be_read_says_why() -> None:
    found = kept(metrics.outcome_samples("broker", None))
    assert found == {(metrics.UP, "broker", "timeout"): 0}


def test_what_is_no_finite_number_never_reaches_the_page() -> None:
    values = [math.nan, math.inf, -math.inf, None, 1.5]
    found = list(families((metrics.HOURS_BEHIND, (f"p{number}", "t"), value) for number, value in enumerate(values)))
    assert [(sample.labels["pipeline"], sample.value) for family in found for sample in family.samples] == [("p4", 1.5)]


PAGE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", re.MULTILINE)


def test_the_docs_have_every_metric_with_its_kind_labels_and_meaning() -> None:
    rows = [
        (name, kind, labels.strip(), text) for name, kind, labels, text in ROW.findall(PAGE.partition("## The pipeline side")[2])
    ]
    assert rows == [(metric.name, metric.kind, ", ".join(metric.labels), metric.help) for metric in CATALOG]


def test_names_are_as_prometheus_wants_them() -> None:
    assert len({metric.name for metric in CATALOG}) == len(CATALOG)
    for metric in CATALOG:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.help.endswith("."), metric.name
