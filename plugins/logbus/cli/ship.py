"""`logbus ship FILE...`: log files to a topic, with a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from logbus import errors
from logbus.cli import endings, options, output
from logbus.formatting import many
from logbus.shipper import merged_lines, shipment, sources
from logbus.shipper.ship import LINE_BYTES_MAX, PARTITIONS_DEFAULT, ShipReport, ship

FOLLOW_SECONDS = 1.0  # between two checks of the files: what is written is sent within this time
QUIET_SECONDS = merged_lines.JOIN_WAIT_MS / 1000 + FOLLOW_SECONDS
AWAY_SECONDS_MAX = 30.0  # between two attempts while the broker does not answer

# Sends what these files have that is new; told of the progress, and asked whether to stop.
Run = Callable[[Sequence[Path], shipment.Progress | None, Callable[[], bool]], ShipReport]


def default_state_path(topic: str) -> Path:
    """Where a run records how far it got, unless --state names another file."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "logbus" / "ship" / f"{topic}.json"


@click.command("ship")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topic", required=True, metavar="NAME", shell_complete=options.complete_topics, help="The topic to send to.")
@click.option(
    "--partitions", type=click.IntRange(1), default=PARTITIONS_DEFAULT, show_default=True, help="If the topic is created."
)
@click.option("--no-create-topic", is_flag=True, help="Fail if the topic does not exist.")
@click.option(
    "--state", type=click.Path(path_type=Path), help="Where progress is kept  [default: ~/.local/state/logbus/ship/TOPIC.json]"
)
@click.option("--server-name", help="The `server` header, and the key if a line names no host  [default: this machine's name]")
@click.option("--include-partial-line", is_flag=True, help="Also send a last line that has no newline yet.")
@click.option(
    "--timezone",
    "zone",
    type=options.TimeZone(),
    help="The zone of times that are written without one: Europe/Berlin  [default: UTC, and the summary counts them]",
)
@click.option(
    "--time-format", metavar="FORMAT", help="How a line's time is written, in strptime's directives: '%d.%m.%Y %H:%M:%S'."
)
@click.option("--time-field", metavar="NAME", help="The field of a JSON or logfmt line that holds its time; a.b for b inside a.")
@click.option(
    "--allow-undated", is_flag=True, help="Send files many of whose lines have no time; each gets that of the line before."
)
@click.option("--accept-times", is_flag=True, help="Send files whose times lie months from when they were last written.")
@click.option(
    "--join-lines",
    is_flag=True,
    help="Lines without a time of their own belong to the record of the line before: stack traces stay whole.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep sending what is written, through rotations, until Ctrl-C.")
@click.option(
    "--line-bytes-max",
    type=click.IntRange(1),
    default=LINE_BYTES_MAX,
    show_default=True,
    help="Skip longer lines; a topic that is created takes lines up to this size.",
)
@click.option(
    "--producer-option",
    "producer_settings",
    multiple=True,
    type=options.ClientSetting(),
    help="A librdkafka setting of the producer alone: compression.type=zstd; may be repeated.",
)
@click.option("--accept-loss", is_flag=True, help="Do not resend what the topic had acknowledged and has lost.")
@options.with_broker
@options.json_option
def command(
    files: tuple[Path, ...],
    topic: str,
    no_create_topic: bool,
    state: Path | None,
    follow: bool,
    line_bytes_max: int,
    producer_settings: Sequence[tuple[str, str]],
    config: Mapping[str, Any],
    as_json: bool,
    **chosen: Any,
) -> None:
    """Send the lines of log FILEs to a topic, oldest first; the next run sends only what is new.

    Each line becomes a record: its key is the host in the line, its timestamp the line's own time. Files may be compressed;
    rotated files next to a named one (access.log.1, access.log-20260522.gz) are found automatically from the second run on.
    """

    def run(named: Sequence[Path], progress: shipment.Progress | None, stop: Callable[[], bool]) -> ShipReport:
        return ship(
            named,
            topic=topic,
            client_config=config,
            state_path=state or default_state_path(topic),
            progress=progress,
            create_topic=not no_create_topic,
            producer_config=dict(producer_settings),
            line_bytes_max=line_bytes_max,
            stop=stop,
            say=output.echo_err,
            **chosen,  # the other options have the names of `ship`'s own parameters
        )

    broker = str(config["bootstrap.servers"])

    def show(report: ShipReport) -> None:
        if as_json:
            output.show_json({"topic": topic, "bootstrap_servers": broker, **asdict(report)})
        else:
            # While files are followed, what waits is sent a moment later: it would be mentioned each time.
            shown = replace(report, unfinished=0, waiting=0, carriage_returns=()) if follow else report
            output.echo(*summary(topic, broker, shown, line_bytes_max).split("\n"))

    if follow:
        keep_sending(files, run, show)
    with _progress_bar(topic) as show_progress, endings.stopping() as stop:
        report = run(files, show_progress, lambda: bool(stop))
    for warning in warnings(report):
        output.echo_err(f"warning: {warning}")
    if stop.exit_code is not None:
        done = summary(topic, broker, report, line_bytes_max, is_interrupted=True)
        done = "\n".join([done, *(f"warning: {sentence}" for sentence in out_of_sight(report))])
        raise endings.Stopped(
            f"{done}\ninterrupted: what was sent is acknowledged and recorded; run it again to continue", stop.exit_code
        )
    show(report)
    if report.gone:
        raise errors.LinesOutOfSight("\n".join(out_of_sight(report)))


def keep_sending(files: Sequence[Path], run: Run, show: Callable[[ShipReport], None]) -> NoReturn:
    """Until a signal: `Stopped`."""
    unwarned = True
    with endings.stopping() as stop:
        for report in following(files, lambda present: run(present, None, lambda: bool(stop)), lambda: bool(stop)):
            # Printed once: what is written later is written with the same clock.
            for warning in warnings(report) if unwarned else ():
                output.echo_err(f"warning: {warning}")
                unwarned = False
            for sentence in out_of_sight(report):
                output.echo_err(f"warning: {sentence}")
            show(report)
    raise endings.Stopped(
        "stopped: what was sent is acknowledged and recorded; run it again to continue",
        stop.exit_code or errors.ExitCode.DONE,
    )


def following(
    files: Sequence[Path], run: Callable[[Sequence[Path]], ShipReport], stopped: Callable[[], bool]
) -> Iterator[ShipReport]:
    """Runs whenever one of the files, or a rotated one next to it, has changed; yields the reports of runs that sent something.
    It waits for a broker that does not answer: nothing is lost, since it is all in the files. A file that does not exist yet, or
    is missing for a moment while it is rotated, does not keep the others waiting."""
    for missing in [path for path in files if not path.exists()]:
        output.echo_err(f"waiting for {missing}, which does not exist yet")
    last_look: object = None
    pause = FOLLOW_SECONDS
    has_run, is_refused = False, False
    while not stopped():
        now, present = looks(files), [path for path in files if path.exists()]
        # Before the run: a run that takes long would find files quiet afterwards whose last records it held back.
        was_quiet = is_quiet(now)
        # A longer pause means that the last run failed: it is tried again even if nothing was written since.
        if present and (now != last_look or pause > FOLLOW_SECONDS):
            try:
                report = run(present)
            except errors.LogGone:
                last_look = None
            except errors.UndatedLog as error:
                # A new file may begin with a banner, or with a line of a clock that is not set yet: its next lines decide.
                if not has_run:
                    raise
                if not is_refused:
                    output.echo_err(f"warning: {error}; trying again when more is written")
                last_look, is_refused = now, True
            except (errors.BrokerUnavailable, errors.DeliveryFailed) as error:
                if pause == FOLLOW_SECONDS:
                    output.echo_err(f"warning: {error}; trying again")
                pause = min(2 * pause, AWAY_SECONDS_MAX)
            else:
                # What a run holds back (the last record, if lines are joined) is checked again even if nothing changes, until it
                # has waited long enough to count as complete.
                last_look, pause = now if was_quiet else None, FOLLOW_SECONDS
                has_run, is_refused = True, False
                if report.lines or report.skipped or report.gone:
                    yield report
        deadline = time.monotonic() + pause
        while not stopped() and time.monotonic() < deadline:
            time.sleep(min(FOLLOW_SECONDS, 0.2))


def is_quiet(looked: Sequence[tuple[str, int, int, int]]) -> bool:
    """Nothing was written for so long that no record is held back."""
    return all(written_ns / 1e9 < time.time() - QUIET_SECONDS for _, _, _, written_ns in looked)


def looks(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """The attributes of the files, and of rotated ones next to them, that change on a write or a rotation."""
    attributes = []
    for path in files:
        for file in (path.absolute(), *sources.beside(path.absolute())):
            with suppress(OSError):
                status = file.stat()
                # All four: a file that was rotated may have grown to its former size between two checks.
                attributes.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return attributes


def summary(topic: str, broker: str, report: ShipReport, line_bytes_max: int, *, is_interrupted: bool = False) -> str:
    """What happened, in a sentence or a few. The broker is named: with two, sending to the wrong one would go unnoticed."""
    rate = report.lines / report.seconds if report.seconds else 0.0
    sent = f"{many(report.lines, 'line')} ({report.bytes:,} bytes) of {many(report.files, 'file')}"
    sentences = [f"{topic} at {broker}: {sent} in {report.seconds:.1f} s, {rate:,.0f} lines/s"]
    if not any((report.lines, report.skipped, report.unfinished, report.waiting, is_interrupted)):
        sentences.append("nothing to send: what the files hold was sent before, or they are empty")
    if report.unfinished:
        lines = many(report.unfinished, "unfinished last line")
        sentences.append(f"{lines} not sent yet: no newline ends it (--include-partial-line sends it)")
    if report.carriage_returns:
        sentences.append(
            f"warning: what waits in {' and in '.join(report.carriage_returns)} has carriage returns in it: if these end its "
            "lines, none of them is ever sent: convert it (tr '\\r' '\\n' < OLD > NEW)"
        )
    if report.waiting:
        records = many(report.waiting, "last record")
        sentences.append(f"{records} not sent yet: the file was just written, and its next line may belong to it")
    if report.lost:
        sentences.append(
            f"warning: {topic} had lost {report.lost} records that it had acknowledged: what it no longer held of these files "
            "was sent again, unless --accept-loss was given"
        )
    if report.unnamed:
        sentences.append(f"warning: lines of these files may be among them; name these, too: {', '.join(report.unnamed)}")
    if report.recovered and not report.lost:
        sentences.append(
            f"{many(report.recovered, 'line')} that an interrupted run had sent were found in the topic and not sent again"
        )
    if report.rotated:
        sentences.append(f"of {many(len(report.rotated), 'rotated file')}, too: {', '.join(report.rotated)}")
    if report.rotated_before:
        sentences.append(
            f"{many(len(report.rotated_before), 'rotated file')} next to it from before the first run; to send what they "
            f"hold, name them, too: {' '.join(report.rotated_before)}"
        )
    for part in report.holes:
        sentences.append(
            f"warning: {part.path}: {many(part.pieces, 'hole')} passed over, {part.bytes:,} zero bytes from byte {part.position} "
            "on: a program that does not append wrote on after a truncation, or a machine lost power"
        )
    sentences += undated_sentences(report)
    if report.zoneless and not report.timezone_assumed:
        sentences.append(f"{many(report.zoneless, 'line')} whose time has no zone were taken in {report.timezone}")
    if report.skipped:
        sentences.append(
            f"warning: {many(report.skipped, 'line')} longer than {line_bytes_max:,} bytes NOT sent (--line-bytes-max)"
        )
    return "\n".join(sentences)


def out_of_sight(report: ShipReport) -> Iterator[str]:
    """Which files may hold lines that nobody sends."""
    for part in report.gone:
        yield (
            f"{part.path} was sent up to byte {part.position}, and that file is neither there nor beside it now: it was moved to "
            "another directory, put into an archive, truncated or deleted. Lines that were written to it after that byte are not "
            "sent. Name the file that holds them now, once: it is known by its content and goes on at that byte"
        )


def undated_sentences(report: ShipReport) -> Iterator[str]:
    """Which time the lines were given that have none of their own."""
    before = report.undated - report.undated_before_any - report.undated_by_file
    if before:
        yield f"{many(before, 'line')} without a believable time took that of the line before"
    if report.undated_before_any:
        lines = many(report.undated_before_any, "line")
        yield f"{lines} without a believable time took that of the first line after them that has one"
    if report.undated_by_file:
        lines = many(report.undated_by_file, "line")
        yield f"{lines} without a believable time took the time at which their file was last written"


def warnings(report: ShipReport) -> Iterator[str]:
    """What puts lines into hours that they were not written in, unless the user acts."""
    if report.zoneless and report.timezone_assumed:
        yield (
            f"{many(report.zoneless, 'line')} carry a time without a zone and were assumed to be UTC: if their host writes local "
            "time, they are in the wrong hours. --timezone names its zone (--timezone UTC confirms that this is right)"
        )
    if report.ahead:
        yield (
            f"{many(report.ahead, 'line')} carry a time more than an hour ahead of now, which is not believed: their host's "
            "clock is wrong, or it writes local time without a zone, which --timezone Europe/Berlin names"
        )
    if report.months_away:
        yield (
            f"{many(report.months_away, 'line')} with a time months away from those of the other lines of their file, the first "
            f"on {report.months_away_day}: a date in a text was taken for a time, or a clock was wrong, and all hours in between "
            "are to be loaded. `logbus try FILE` shows how times are read"
        )
    if (undated := report.undated - report.ahead) > report.lines / 2:
        yield (
            f"{undated} of {report.lines} lines have no time that is understood, so their hours are not those in which they "
            "were written: --time-format or --time-field say how it is written, `logbus try FILE` shows what is understood"
        )


@contextmanager
def _progress_bar(topic: str) -> Iterator[shipment.Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    lines = TextColumn("{task.fields[lines]:,} lines")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), lines, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(topic, total=None, lines=0)
        yield lambda done, total, lines: bar.update(task, completed=done, total=total, lines=lines)
