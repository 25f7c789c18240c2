"""`logbus produce TOPIC`: lines to records; `logbus consume TOPIC`: the records of a topic. Both with kcat's options, except
where docs/cli.md says otherwise.

`produce` is idempotent and waits for all in-sync replicas; the command ends with status 0 only when every record is
acknowledged. If it is interrupted, it waits briefly for what is in flight and says how many records are
stored.

`consume -o` is kcat's: where to begin. No place in a topic is spelled `json` or `table`, so those two choose the form of the
output, as they do everywhere else. `-f` follows, as `tail -f` does; a format is `--format`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from logbus import errors
from logbus.cli import endings, options, output
from logbus.errors import UserError
from logbus.formatting import many
from logbus.kafka import client, console_consumer, console_format, groups, producing, topics
from logbus.kafka.client import ISOLATION_LEVELS, Client
from logbus.kafka.console_format import Render
from logbus.pipeline_settings import check_registry

FINISH_SECONDS_MAX = 10.0  # for what is in flight when the command is interrupted: the user wants to be gone
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Delimiter(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Bytes, with the escapes that people type."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        text = value if isinstance(value, bytes) else console_format.unescaped(value)
        return text or self.fail("an empty delimiter separates nothing", param, ctx)


@click.command("produce")
@click.argument("topic", shell_complete=options.complete_topics)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("-K", "--key-delimiter", type=Delimiter(), metavar="DELIM", help="What is before it in a line is the key.")
@click.option("-k", "--key", help="The key of every record that has none of its own.")
@click.option(
    "-H", "--header", "headers", multiple=True, type=options.Setting(), help="A header of every record; may be repeated."
)
@click.option(
    "-p", "--partition", type=click.IntRange(0), help="The partition; by default chosen by the key (murmur2), or at random."
)
@click.option("-z", "--compression", "codec", type=click.Choice(CODECS), help="The codec of batches; by default lz4.")
@click.option(
    "-D", "--delimiter", type=Delimiter(), default="\\n", show_default=True, metavar="DELIM", help="What ends a record."
)
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="An empty key or value is null (a tombstone), not empty.")
@options.with_broker
@options.json_option
def produce_command(
    topic: str,
    files: Sequence[Path],
    key_delimiter: bytes | None,
    key: str | None,
    headers: Sequence[tuple[str, str]],
    partition: int | None,
    codec: str | None,
    delimiter: bytes,
    empty_is_null: bool,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Send the lines of FILES, or of standard input, to TOPIC: each a record, acknowledged by all in-sync replicas.

    \b
    tail -F access.log | logbus produce access_log
    logbus produce users -K: users.txt        # alice:{"age": 7} gets the key alice
    """
    description = topics.Topics(client.Client.for_question(config)).topic(topic)
    if partition is not None and partition not in description.partitions:
        raise UserError(f"topic {topic} has no partition {partition}: it has 0 to {description.partitions[-1]}")
    form = console_format.LineFormat(
        delimiter=delimiter,
        key_delimiter=key_delimiter,
        key=None if key is None else key.encode(),
        partition=partition,
        headers=tuple((name, value.encode()) for name, value in headers),
        empty_is_null=empty_is_null,
    )
    sending = producing.open_sending({**config, **({"compression.type": codec} if codec else {})}, topic, output.echo_err)
    with ExitStack() as stack, endings.stopping() as stop:
        lines = console_format.records(opened(files, stack), form)
        is_typed = not files and output.stdin_is_terminal()
        send_all(sending, lines if is_typed else output.tracked(lines, topic), stop)
    if as_json:
        output.show_json(producing.summary(sending))
    else:
        output.echo_err(f"{topic}: {many(sending.acknowledged, 'record')} stored")


def send_all(
    sending: producing.Sending, lines: Iterable[Mapping[str, Any]], stop: endings.Stop, seconds_max: float = FINISH_SECONDS_MAX
) -> None:
    """Sends and waits for every acknowledgement; if it is interrupted, `Stopped` says how far it got."""
    for record in stop.waiting_for(lines):
        sending.send(record)
        if sending.has_failed or stop:
            break
    sending.settle(lambda: bool(stop))
    if stop.exit_code is None:
        return
    unknown = sending.finish(seconds_max)
    rest = f"; {many(unknown, 'record')} in flight may or may not be stored" if unknown else ""
    raise endings.Stopped(
        f"interrupted: {many(sending.acknowledged, 'record')} stored in topic {sending.topic}{rest}", stop.exit_code
    )


def opened(paths: Sequence[Path], stack: ExitStack) -> Iterator[BinaryIO]:
    """The files one after another; standard input if none is named, or for `-`."""
    if sys.stdin is None and (not paths or Path("-") in paths):
        raise UserError("standard input is closed: name a file, or pipe something in")
    for path in paths or [Path("-")]:
        yield sys.stdin.buffer if str(path) == "-" else stack.enter_context(readable(path))


def readable(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


# `logbus consume TOPIC`: the records of a topic, with kcat's options except where docs/cli.md says otherwise.


FORMS = (options.TABLE, options.JSON)
RESETS: Mapping[console_consumer.PositionKind, str] = {
    console_consumer.PositionKind.BEGINNING: "earliest",
    console_consumer.PositionKind.END: "latest",
    console_consumer.PositionKind.STORED: "earliest",
}


@click.command("consume")
@click.argument("topic", shell_complete=options.complete_topics)
@click.option(
    "-o",
    "--offset",
    "places",
    multiple=True,
    metavar="PLACE",
    help="Where to begin: beginning, end, stored, N, -N (from the end), s@TIME; e@TIME is where to end. Or json, table.",
)
@click.option(
    "--output", "form", type=click.Choice(FORMS), help="One JSON object a line, or columns; by default the values alone."
)
@click.option("-J", "--json", "is_json", is_flag=True, help="The same as --output json: kcat's envelope.")
@click.option(
    "--format", "template", help=r"kcat's: %s value, %k key, %o offset, %p partition, %t topic, %T time, %h headers, \n."
)
@click.option(
    "-D",
    "--delimiter",
    type=Delimiter(),
    default="\\n",
    show_default=True,
    metavar="DELIM",
    help="What follows each value.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue at the end, and wait for new records, forever.")
@click.option("-e", "--exit", "exits", is_flag=True, help="Exit at the end; the default without -f.")
@click.option("-c", "--count", "count", type=click.IntRange(1), help="Exit after this many records.")
@click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(0), help="This partition; may be repeated.")
@click.option("--text", help="Only records whose value contains this.")
@click.option("--key", help="Only records with this key.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only records with this header; may be repeated: all of them.",
)
@click.option(
    "-G",
    "--group",
    shell_complete=options.complete_groups,
    help="Read as a member of this group, and commit what was printed; with -p do not join it, and commit nothing.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the number of records at the end.")
@click.option("--isolation-level", type=click.Choice(list(ISOLATION_LEVELS)), default="read_committed", show_default=True)
@click.option("--registry", metavar="URL", help="Print values as JSON, by the schemas that they name in this registry.")
@options.with_broker
def consume_command(
    topic: str,
    places: Sequence[str],
    form: str | None,
    is_json: bool,
    template: str | None,
    delimiter: bytes,
    follow: bool,
    exits: bool,
    count: int | None,
    partitions: Sequence[int],
    text: str | None,
    key: str | None,
    headers: Sequence[str],
    group: str | None,
    quiet: bool,
    isolation_level: str,
    registry: str | None,
    config: Mapping[str, Any],
) -> None:
    """Print the records of TOPIC, from the beginning to the current end; with -f, forever.

    \b
    logbus consume access_log -o -10 -f              # the last ten of each partition, and new ones
    logbus consume access_log -o s@2015-05-17T10:00:00Z -o e@2015-05-17T11:00:00Z -o json
    logbus consume access_log --format '%p %o %k %s\\n'
    logbus consume access_log -o s@2015-05-17T10:00:00Z --text ' 500 ' --header host=web1
    logbus consume orders --registry http://127.0.0.1:8081
    """
    if registry is not None:
        check_registry("--registry", registry, errors.UserError)
    if follow and exits:
        raise click.UsageError("-f continues at the end and -e exits there: not both")
    forms = [word for word in places if word in FORMS]
    span = usable(lambda: console_consumer.parse_span(word for word in places if word not in FORMS))
    if follow and span.until_ms is not None:
        raise click.UsageError("-f continues forever and e@TIME ends: not both")
    form = options.JSON if is_json else form or next(iter(forms), None)
    render = rendering(form, template, delimiter)
    chosen = console_consumer.RecordFilter.of(text, key, headers)
    request = console_consumer.ReadRequest(
        topic=topic, follows=follow, count_max=count, isolation_level=isolation_level, filter=chosen
    )
    description = topics.Topics(Client.for_question(config)).topic(topic)
    named = console_consumer.chosen_partitions(topic, description.partitions, partitions)
    decoding = DecodingRender(render, registry, config) if registry is not None else None
    with reading(config, request, span, named if partitions or group is None else [], group) as consumer:
        if form == options.TABLE:
            output.write_raw(console_format.HEADLINE)
        print_all(consumer, decoding or render, quiet)
    if decoding is not None and decoding.undecoded and not quiet:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in decoding.undecoded.most_common())
        output.echo_err(f"printed as they are, because they cannot be decoded: {kinds}")


class DecodingRender:
    """Renders records with their values as JSON. One that cannot be decoded stays as it is, and is counted by what is wrong."""

    def __init__(self, render: Render, registry: str, config: Mapping[str, Any]) -> None:
        from logbus.parsing.decoders import SchemaBook
        from logbus.parsing.registry_client import RegistryClient
        from logbus.parsing.schema_format import ReadableValues

        self._render = render
        self._readable = ReadableValues(SchemaBook(ask=RegistryClient(registry, config).fetch))
        self.undecoded = Counter[str]()

    def __call__(self, message: Any) -> bytes:
        from logbus.parsing.decoders import Undecodable

        try:
            message.set_value(self._readable.of_message(message))
        except Undecodable as error:
            self.undecoded[type(error).__name__] += 1
        return self._render(message)


@contextmanager
def reading(
    config: Mapping[str, Any],
    request: console_consumer.ReadRequest,
    span: console_consumer.PositionSpan,
    partitions: list[int],
    group: str | None,
) -> Iterator[console_consumer.ConsoleConsumer]:
    """By assignment if partitions are named or no group is; otherwise as a member of the group. Closed cleanly at the end."""
    is_member = group is not None and not partitions
    if is_member and (span.kind not in RESETS or span.until_ms is not None):
        raise click.UsageError(
            "a group continues where it is: with -G, -o is beginning or end, and applies to partitions new to it"
        )
    limits = None if is_member else limits_of(config, request, span, partitions, group)
    client = console_consumer.consumer(
        config, request, group if is_member else None, RESETS.get(span.kind, "error") if is_member else "error"
    )
    try:
        yield console_consumer.ConsoleConsumer(client, request, limits, group, output.echo_err)
    finally:
        client.close()


def limits_of(
    config: Mapping[str, Any],
    request: console_consumer.ReadRequest,
    span: console_consumer.PositionSpan,
    partitions: list[int],
    group: str | None,
) -> Any:
    if span.kind is console_consumer.PositionKind.STORED and group is None:
        raise click.UsageError("-o stored begins where a group is: name it with -G")
    client = Client.for_question(config)
    committed = groups.Groups(client).committed(group) if group else {}
    stored = {partition: offset for (topic, partition), offset in committed.items() if topic == request.topic}
    return console_consumer.offset_bounds(topics.Topics(client), request.topic, partitions, span, request.isolation_level, stored)


def print_all(consumer: console_consumer.ConsoleConsumer, render: Render, quiet: bool) -> None:
    """Writes batch by batch; each is flushed before the group may commit it."""
    file: BinaryIO = sys.stdout.buffer
    with endings.stopping() as stop:
        for batch in consumer.batches(lambda: bool(stop)):
            file.write(b"".join([render(message) for message in batch]))
            file.flush()
        if stop.exit_code is not None:
            raise endings.Stopped(f"interrupted: {many(consumer.records, 'record')} printed", stop.exit_code)
    if not quiet:
        output.echo_err(f"{many(consumer.records, 'record')} of topic {consumer.request.topic}")


def rendering(form: str | None, template: str | None, delimiter: bytes) -> Render:
    """How a record becomes bytes. On a terminal, control characters in records are shown, not obeyed."""
    if form is not None and template is not None:
        raise click.UsageError("--format and --output exclude each other: give one")
    if form == options.JSON:
        return console_format.envelope
    if form == options.TABLE:
        return console_format.columns
    render = usable(lambda: console_format.compiled(template)) if template is not None else console_format.values(delimiter)
    return console_format.harmless(render) if sys.stdout.isatty() else render


def usable(make: Callable[[], Any]) -> Any:
    """The result of `make`; its `ValueError` is a usage error."""
    try:
        return make()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
