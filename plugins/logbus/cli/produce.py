"""`logbus produce TOPIC`: lines to records, with kcat's options.

The producer is idempotent and waits for all in-sync replicas; the command ends with status 0 only when every record is
acknowledged. If it is interrupted, it waits briefly for what is in flight and says how many records are
stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click

from logbus.cli import completion, options, output, signals
from logbus.errors import UserError
from logbus.formatting import many
from logbus.kafka import client, console_format, producing, topics

FINISH_SECONDS_MAX = 10.0  # for what is in flight when the command is interrupted: the user wants to be gone
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Delimiter(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Bytes, with the escapes that people type."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        text = value if isinstance(value, bytes) else console_format.unescaped(value)
        return text or self.fail("an empty delimiter separates nothing", param, ctx)


@click.command("produce")
@click.argument("topic", shell_complete=completion.complete_topics)
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
def command(
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
    with ExitStack() as stack, signals.stopping() as stop:
        lines = console_format.records(opened(files, stack), form)
        is_typed = not files and output.stdin_is_terminal()
        send_all(sending, lines if is_typed else output.tracked(lines, topic), stop)
    if as_json:
        output.show_json(producing.summary(sending))
    else:
        output.echo_err(f"{topic}: {many(sending.acknowledged, 'record')} stored")


def send_all(
    sending: producing.Sending, lines: Iterable[Mapping[str, Any]], stop: signals.Stop, seconds_max: float = FINISH_SECONDS_MAX
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
    raise signals.Stopped(
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
