"""The pages' data as JSON, below /logbus/api: read only. Who may see which pipeline is checked for every response.

A response says what is down and still holds the rest: a broker that does not answer takes nothing away from what the ledger
knows, and vice versa.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from logbus import errors, model
from logbus.kafka import console_consumer, topic_list
from logbus.kafka.groups import group_json
from logbus.loads import dead_letters
from logbus.loads.commit_checks import schema_book
from logbus.parsing.decoders import SchemaBook
from logbus.pipeline_settings import SCHEMA_PARSERS
from logbus.status import fleet, ledger_facts
from logbus.web import actions, details, overview, request_context, sources, topic_records
from logbus.web.overview import HOURS_DEFAULT, HOURS_MAX, FleetReading, View
from logbus.web.reading import REFRESH_SECONDS
from logbus.windows import log_changes, sql_errors
from logbus.windows.rows import Row, to_pipeline

NO_PIPELINE = "no pipeline is registered that you may see"

router = APIRouter(prefix="/api")

Hours = Annotated[int, Query(ge=1, le=HOURS_MAX, description="how far back, where neither since nor until says it")]


async def interval_of_run(request: Request, dag_id: str | None = None, run_id: str | None = None) -> model.Interval | None:
    """The data interval of a Dag run, if the user may see the run."""
    if dag_id is None or run_id is None:
        return None
    try:
        run = await details.AirflowRest(request).run(dag_id, run_id)
    except HTTPException:
        return None
    return None if run is None else run.interval


def view_of(
    run_interval: Annotated[model.Interval | None, Depends(interval_of_run)],
    dag_id: str | None = None,
    run_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
    hours: Hours = HOURS_DEFAULT,
) -> View:
    """What the request asks to see; 400 if that is not a span."""
    run = (dag_id, run_id) if dag_id is not None and run_id is not None else None
    view = View(
        since=request_context.instant(since),
        until=request_context.instant(until),
        hours=hours,
        run=run,
        run_interval=run_interval,
    )
    if view.since is not None and view.until is not None and view.until <= view.since:
        raise HTTPException(400, f"until ({until}) must be after since ({since})")
    return view


@router.get("/overview")
def get_overview(
    context: request_context.ContextDep,
    view: Annotated[View, Depends(view_of)],
    dag_id: str | None = None,
) -> Response:
    """Every pipeline that the user may see (of one Dag, if one is named): its hours, its lag, its throughput."""
    _begin_reading(context, view)
    reading, warehouse = context.query_ledger(context.source.fleet.get)
    # A Dag's own tab shows that Dag's pipelines among those the user may see: two filters, and the second never widens the first.
    dag_ids = {name: listed for name, listed in context.visible(reading).items() if dag_id is None or dag_id in listed}
    names = set(dag_ids)
    span, pipelines = None, list[orjson.Fragment]()
    if reading is not None:
        try:
            span, pipelines = shown(context, reading, names, view)
        except errors.UserError as error:
            warehouse = context.warehouse_state(error)
        else:
            if not names:
                warehouse = {"state": "empty", "message": NO_PIPELINE, "advice": request_context.NO_LEDGER_ADVICE}
    broker = context.broker_state(reading.broker_error if reading else _read_or_error(context.source.topics.get)[1])
    return request_context.answer(
        {
            "now": model.instant_text(reading.at if reading else context.now),
            "refresh_seconds": context.source.fleet.refresh_seconds(),
            "span": span,
            "latest": latest_of(reading, names),
            "warehouse": warehouse,
            "broker": broker,
            "dag_ids": dag_ids,
            "paused_dag_ids": request_context.paused_dags({listed_id for listed in dag_ids.values() for listed_id in listed}),
            "pipelines": pipelines,
        }
    )


def latest_of(reading: FleetReading | None, names: Collection[str]) -> str | None:
    """Where the newest frozen records end: a user whose map is empty may want to look there."""
    ends = [end for name, end in (reading.newest_ends if reading else {}).items() if name in names]
    return model.instant_text(max(ends)) if ends else None


def _begin_reading(context: request_context.RequestContext, view: View) -> None:
    """Ledger and broker in parallel: the span to be shown is guessed from the previous reading. A wrong guess costs a reading."""
    context.source.fleet.begin()
    if view.run is None:
        before = context.source.fleet.before()
        span = overview.span_of(before, before.names if before else (), view, context.now)
        context.source.overview(span).begin()


def shown(
    context: request_context.RequestContext, reading: FleetReading, names: Collection[str], view: View
) -> tuple[dict[str, Any], list[orjson.Fragment]]:
    """The span, and the pipelines of these names in it; both as of the reading: a new hour may have begun since."""
    # What a run worked on is known from its windows, so it is for those who may see one of its Dag's pipelines.
    of_run = span_of_run(context.source, view) if names else view.run_interval
    span = overview.span_of(reading, names, view, reading.at, of_run)
    pipelines = context.source.overview(span, view.run).get().of(names)
    # The width of a column comes from what this user sees; otherwise other users' pipelines would show in the shape of the map.
    step = overview.step_of(overview.pipelines_of(reading, names))
    shown_span = {
        "start": model.instant_text(span.start),
        "end": model.instant_text(span.end),
        "step_seconds": int(step.total_seconds()),
        "series_start": model.instant_text(ledger_facts.series_start(span)),
        "series_step_seconds": int(ledger_facts.SERIES_STEP.total_seconds()),
    }
    return shown_span, pipelines


def span_of_run(source: sources.PageSource, view: View) -> model.Interval | None:
    """The span that the view's Dag run worked on; if it has done nothing yet, its data interval."""
    if view.run is None:
        return None
    with sql_errors.ledger_errors(), source.engine().connect() as connection:
        return ledger_facts.span_of_run(connection, *view.run) or view.run_interval


@router.get("/windows/{pipeline}/{start}")
def get_window(request: Request, target: actions.TargetDep) -> Response:
    """One window: everything the ledger knows of it, and what the user may do with it."""
    target.context.source.fleet.begin()
    with request_context.http_errors():
        engine = target.context.source.engine()
        # While the ledger is read, the broker answers in a thread of its own (`begin` above): a page costs the slower of the
        # two, not both.
        window = details.window_detail(engine, target.history)
        reading = target.context.source.fleet.get()
        cell = overview.window_cell_json(engine, reading, target.history.window)
    values = {**window, "cell": cell, "dag_ids": target.dag_ids, "actions": actions.possible(target, request)}
    return target.context.page(target.context.source.fleet, reading.broker_error, values)


@router.get("/windows/{pipeline}/{start}/waiting")
def get_waiting(request: Request, hour: actions.AnyHourDep) -> Response:
    """An hour that is not frozen: whether it is open, what is known of it, and what the user may do about it."""
    context, registered = hour.context, hour.registered
    with request_context.http_errors():
        engine = context.source.engine()
        reading = context.source.fleet.get()
        waiting = {} if hour.frozen is not None else overview.waiting_json(engine, reading, hour.pipeline, hour.interval)
    closes_at = hour.interval.end + registered.lateness
    is_open = context.now < closes_at
    return context.page(
        context.source.fleet,
        reading.broker_error,
        {
            "pipeline": hour.pipeline,
            "topic": registered.topic,
            "start": model.instant_text(hour.interval.start),
            "end": model.instant_text(hour.interval.end),
            "is_frozen": hour.frozen is not None,
            "is_open": is_open,
            "closes_at": model.instant_text(closes_at),
            **waiting,
            "dag_ids": hour.dag_ids,
            "actions": [] if is_open else [actions.first_load(hour, request)],
            "command": actions.command_of(hour),
        },
    )


@router.get("/pipelines/{pipeline}")
def get_pipeline(context: request_context.ContextDep, pipeline: str) -> Response:
    """One pipeline: its definition, its progress, its recent hours and attempts, its aggregates and streams."""
    context.source.fleet.begin()
    with request_context.http_errors():
        engine = context.source.engine()
        dag_ids = request_context.require_visible(engine, pipeline, context.user)
        page = details.pipeline_detail(engine, pipeline)
        reading = context.source.fleet.get()
        of_pipeline = overview.reading_of(engine, reading, pipeline)
        lag = overview.lag_json(of_pipeline.lag, reading.loaded.get(pipeline), reading.at)
        computed = details.computed_detail(engine, pipeline, of_pipeline.ends, context.now)
    values = {**page, **computed, "lag": lag, "dag_ids": dag_ids, "paused_dag_ids": request_context.paused_dags(dag_ids)}
    return context.page(context.source.fleet, reading.broker_error, values)


@router.get("/topics")
def get_topics(context: request_context.ContextDep) -> Response:
    """Every topic; pipelines are named if the user may see them."""
    context.source.topics.begin()
    registered, warehouse = context.query_ledger(context.source.registered.get)
    owners = _owners_of(registered, context.visible(registered))
    # Without a ledger it cannot be known whether retention is managed: unknown, and not "no".
    nobody = topic_list.TopicOwners(is_managed=None if registered is None else False)
    topics, error = _read_or_error(context.source.topics.get)
    if registered is not None and request_context.may_read_connection(context.user, context.warehouse_conn_id):
        for name in {facts.topic for facts in registered.tables}:
            audits = [facts.summary() for facts in registered.tables if facts.topic == name]
            owners[name] = replace(owners.get(name, nobody), audits=audits)
    listed = [topic_list.topic_json(topic, owners.get(topic.name, nobody)) for topic in topics or ()]
    return context.page(context.source.topics, error, {"warehouse": warehouse, "topics": listed})


def filter_of(
    text: str | None = None, key: str | None = None, header: Annotated[list[str] | None, Query()] = None
) -> console_consumer.RecordFilter:
    """Which records the request wants: `text` in the value, this `key`, each `header` as `name=value` or by its name."""
    return console_consumer.RecordFilter.of(text, key, header or ())


FilterDep = Annotated[console_consumer.RecordFilter, Depends(filter_of)]


@router.get("/topics/{topic}/records")
def get_records(
    context: request_context.ContextDep,
    topic: str,
    chosen: FilterDep,
    partition: Annotated[int | None, Query(ge=0)] = None,
    since: str | None = None,
    until: str | None = None,
    offset: Annotated[int | None, Query(ge=0)] = None,
    starting_offsets: str | None = None,
    ending_offsets: str | None = None,
    count: Annotated[int, Query(ge=1, le=topic_records.RECORDS_MAX)] = topic_records.RECORDS_DEFAULT,
) -> Response:
    """The last records, those from an instant or an offset on, or those of a range; or what a filter takes of them."""
    _require_visible_records(context, topic)
    is_search = chosen != console_consumer.EVERY_RECORD
    look = topic_records.RecordsLook(
        topic=topic,
        span=_span_of(since, until, offset, None if is_search or starting_offsets else count),
        count=count,
        partition=partition,
        bounds=_bounds_of(starting_offsets, ending_offsets),
        filter=chosen,
    )
    if look.bounds is not None and (since or until or offset is not None):
        raise HTTPException(400, "give starting_offsets and ending_offsets, or a time or an offset, not both")
    with request_context.http_errors():
        readable = _readable_values(context, topic)
        records = topic_records.look_at(context.source.broker, look, context.source.searches, readable)
    return request_context.answer({**records, "now": model.instant_text(context.now), "refresh_seconds": REFRESH_SECONDS})


@router.get("/topics/{topic}/records/{partition}/{offset}")
def get_record_trace(
    context: request_context.ContextDep,
    topic: str,
    partition: Annotated[int, Path(ge=0)],
    offset: Annotated[int, Path(ge=0)],
) -> Response:
    """What became of one record: its window, and its row or dead letter, in each pipeline of the topic that the user may see."""
    with request_context.http_errors():
        reading = context.source.registered.get()
        engine, visible = context.source.engine(), context.visible(reading)
        of_topic = [row for row in reading.rows if row["topic"] == topic and row["name"] in visible]
        pipelines = [to_pipeline(row) for row in of_topic if _is_of_this_broker(context, row)]
        traces = [dead_letters.trace_record(engine, pipeline, partition, offset) for pipeline in pipelines]
    values = {"topic": topic, "partition": partition, "offset": offset, "pipelines": [trace.summary() for trace in traces]}
    return request_context.answer({"now": model.instant_text(context.now), **values})


@router.get("/topics/{topic}/tail")
def get_tail(
    context: request_context.ContextDep,
    topic: str,
    chosen: FilterDep,
    partition: Annotated[int | None, Query(ge=0)] = None,
    next_offsets: str | None = None,
) -> Response:
    """A topic's newest records; with the `next_offsets` of the answer before, those that have arrived since."""
    _require_visible_records(context, topic)
    offsets = None if next_offsets is None else topic_records.parsed_offsets(next_offsets)
    with request_context.http_errors():
        view = context.source.tail(topic).view(offsets, chosen, partition)
        values = view.summary(_readable_values(context, topic) if view.records else None)
    now = model.instant_text(context.now)
    return request_context.answer({**values, "topic": topic, "now": now, "refresh_seconds": topic_records.TURN_SECONDS})


def _span_of(since: str | None, until: str | None, offset: int | None, last: int | None) -> console_consumer.PositionSpan:
    """From an instant or an offset on; without either the last records, or from the beginning on if there is no `last`."""
    if since is not None and offset is not None:
        raise HTTPException(400, "give since or offset, not both: each says where to begin")
    until_ms = None if until is None else model.milliseconds(request_context.wanted_instant(until))
    if since is not None:
        number = model.milliseconds(request_context.wanted_instant(since))
        return console_consumer.PositionSpan(kind=console_consumer.PositionKind.SINCE, number=number, until_ms=until_ms)
    if offset is not None:
        return console_consumer.PositionSpan(kind=console_consumer.PositionKind.OFFSET, number=offset, until_ms=until_ms)
    if last is None or until is not None:
        return console_consumer.PositionSpan(until_ms=until_ms)
    return console_consumer.PositionSpan(kind=console_consumer.PositionKind.BEFORE_END, number=last)


def _bounds_of(starting: str | None, ending: str | None) -> dict[int, console_consumer.OffsetBounds] | None:
    if starting is None and ending is None:
        return None
    starts, ends = (topic_records.parsed_offsets(text or "") for text in (starting, ending))
    if starts.keys() != ends.keys():
        raise HTTPException(400, "starting_offsets and ending_offsets (exclusive) must name the same partitions")
    return {part: console_consumer.OffsetBounds(start_offset=start, end_offset=ends[part]) for part, start in starts.items()}


def _require_visible_records(context: request_context.RequestContext, topic: str) -> None:
    """403 unless the user may read the connection to the broker, or see a pipeline that loads this topic of this broker."""
    if request_context.may_read_connection(context.user, context.kafka_conn_id):
        return
    registered, _ = context.query_ledger(context.source.registered.get)
    visible = context.visible(registered)
    rows = [row for row in registered.rows if row["topic"] == topic and row["name"] in visible] if registered else []
    if not context.has_default_connections or not any(_is_of_this_broker(context, row) for row in rows):
        raise HTTPException(403, NOT_YOURS.format(topic=topic, conn_id=context.kafka_conn_id))


def _readable_values(context: request_context.RequestContext, topic: str) -> topic_records.Readable | None:
    """By the schemas that are frozen for pipelines of the topic that the user may see; the registry is not asked."""
    registered, _ = context.query_ledger(context.source.registered.get)
    visible = context.visible(registered)
    of_topic = [row for row in registered.rows if row["topic"] == topic and row["name"] in visible] if registered else []
    names = [row["name"] for row in of_topic if row["parse"] in SCHEMA_PARSERS]
    if not names:
        return None
    # Here, because Arrow is a third of an api-server's memory, and most have no such pipeline.
    from logbus.parsing.schema_format import ReadableValues

    engine = context.source.engine()
    schemas = {reference: frozen for name in names for reference, frozen in schema_book(engine, name).schemas.items()}
    return ReadableValues(SchemaBook(schemas=schemas))


def _is_of_this_broker(context: request_context.RequestContext, row: Row) -> bool:
    """Whether the broker's topic is the pipeline's own: a Dag may name another broker, whose topic has the same name."""
    with request_context.http_errors():
        try:
            log_changes.topic_on_its_cluster(row, context.source.log_offsets())
        except errors.AnotherCluster:
            return False
    return True


NOT_YOURS = (
    "the records of {topic} are shown to those who may see a pipeline that loads it, or Airflow's connection {conn_id}; "
    "an administrator of Airflow can give your role that right"
)


@router.get("/groups")
def get_groups(context: request_context.ContextDep) -> Response:
    """Every consumer group, its members, and how far each is behind."""
    groups, error = _read_or_error(context.source.groups.get)
    listed = [group_json(group, groups.ends) for group in groups.groups] if groups else []
    return context.page(context.source.groups, error, {"groups": listed})


NOT_YOUR_CONNECTION = (
    "what Airflow's connection {conn_id} may do is shown to those who may see it; an administrator of Airflow can give your role "
    "that right"
)


@router.get("/connection")
def get_connection(context: request_context.ContextDep) -> Response:
    """What the connection to the broker may do, for those who may see it in Airflow: its user is named."""
    if not request_context.may_read_connection(context.user, context.kafka_conn_id):
        raise HTTPException(403, NOT_YOUR_CONNECTION.format(conn_id=context.kafka_conn_id))
    reading, error = _read_or_error(context.source.rights.get)
    # Whoever sees the connection may also read where it leads, and why it does not.
    problem = None if error is None else str(error)
    values: dict[str, Any] = {"conn_id": context.kafka_conn_id, "problem": problem, "resources": None, "left_out": 0}
    if reading is not None:
        values |= {"resources": [resource.summary() for resource in reading.resources], "left_out": reading.left_out}
    return context.page(context.source.rights, error, values)


Value = TypeVar("Value")


def _read_or_error(read: Callable[[], Value]) -> tuple[Value | None, errors.BrokerUnavailable | None]:
    try:
        return read(), None
    except errors.BrokerUnavailable as error:
        return None, error


def _owners_of(registered: fleet.Registered | None, visible: Collection[str]) -> dict[str, topic_list.TopicOwners]:
    """By topic what the ledger knows of it: its pipelines, whether its retention is managed, bytes of a record."""
    owners: dict[str, topic_list.TopicOwners] = {}
    if registered is None:
        return owners
    for pipeline in registered.pipelines:
        before, loaded = owners.get(pipeline.topic, topic_list.TopicOwners()), registered.loaded.get(pipeline.name)
        owners[pipeline.topic] = topic_list.TopicOwners(
            pipelines=[*before.pipelines, *([pipeline.name] if pipeline.name in visible else [])],
            is_managed=pipeline.topic in registered.policies,
            bytes_each=before.bytes_each if loaded is None or loaded.bytes_each is None else loaded.bytes_each,
        )
    return owners
