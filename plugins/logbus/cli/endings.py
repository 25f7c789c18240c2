"""How a command ends early: Ctrl-C and SIGTERM end it cleanly, with one line that says how far it got; and what to type instead
of a command or an option that does not exist, or of an address at which no broker answers.

A command that sends or reads runs inside `stopping()`. There the first signal only sets a flag, which the command checks between
two records, so no record is half processed. While the command waits for input, which a flag would not wake, the signal raises.
The command finishes what is under way and raises `Stopped` with its sentence; the group (logbus.cli) prints that and exits with
128 plus the signal's number. A second signal takes effect at once.

Kafka's and kubectl's words come to the fingers first. Words that mean the same and look different (`topics`, `-t`) are in the
tables here; similar spellings (`lst`) come second: click suggests those for options and within a group of commands. Of an address
it is said where it came from: a wrong one is often left over from another day.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import TypeVar

import click
from click.core import ParameterSource

from logbus.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Item = TypeVar("Item")


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled wherever Ctrl-C is."""


class Stopped(Exception):
    """Stopped cleanly; the message says how far it got."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stop:
    """The flag that a signal sets."""

    def __init__(self) -> None:
        self.exit_code: ExitCode | None = None
        self._is_waiting = False

    def __bool__(self) -> bool:
        return self.exit_code is not None

    def waiting_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, until a signal: one that arrives while waiting for the next item ends the wait."""
        remaining = iter(items)
        try:
            while True:
                self._is_waiting = True  # set first: a signal from here on raises, an earlier one is seen below
                if self:
                    return
                try:
                    item = next(remaining)
                except StopIteration:
                    return
                self._is_waiting = False
                yield item
        except KeyboardInterrupt:
            if not self._is_waiting:
                raise
        finally:
            self._is_waiting = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        is_second, self.exit_code = bool(self), ExitCode(128 + number)
        if is_second or self._is_waiting:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """Both signals set the flag while it is active."""
    stop = Stop()
    with _handled(SIGNALS, stop.note):
        yield stop


@contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and a closed terminal raise as Ctrl-C does: for work that stops what it started when it is interrupted."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated

    # A closed terminal ends nothing that was started to survive it, as under nohup.
    is_watched = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    with _handled((signal.SIGTERM, signal.SIGHUP) if is_watched else (signal.SIGTERM,), leave):
        yield


def set_at_signals(event: threading.Event) -> None:
    """For a server, which runs until the event is set: either signal sets it, from now on."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: event.set())


@contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Only the main thread receives signals, so elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)


def exit_code_of(interrupt: KeyboardInterrupt) -> ExitCode:
    return ExitCode.TERMINATED if isinstance(interrupt, Terminated) else ExitCode.INTERRUPTED


def discard_stdout() -> None:
    """Standard output has lost its reader: what is still buffered for it must not fail at exit."""
    with suppress(OSError):  # not a real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# What to type instead: of a command or an option that does not exist, and of an address at which no broker answers.


ADDRESS_ORIGIN = "logbus.address_origin"  # where the context of a command keeps it
UP_ENVIRONMENT = ".logbus/up/env"
ANOTHER = (
    f"`logbus up` starts a broker here, `source {UP_ENVIRONMENT}` in the directory where it runs sets its address, and "
    "--bootstrap-server HOST:PORT names any other"
)

# At the top: other tools' programs, plurals, and what other command lines call these things.
OTHER_TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("topics", "list-topics"), "topic ls"),
    **dict.fromkeys(("groups", "consumer-groups", "list-groups"), "group ls"),
    **dict.fromkeys(("windows", "hours"), "window ls"),
    **dict.fromkeys(("pipelines", "jobs"), "pipeline ls"),
    **dict.fromkeys(("dead-letters", "deadletters", "dlq", "errors"), "dead-letter ls"),
    **dict.fromkeys(("list", "ls", "get"), "topic ls, group ls, pipeline ls or window ls"),
    **dict.fromkeys(("describe", "show"), "topic describe, group describe, pipeline show or window show"),
    **dict.fromkeys(("create", "create-topic"), "topic create"),
    **dict.fromkeys(("delete", "delete-topic"), "topic delete or group delete"),
    "register": "pipeline register",
    "kafka-topics": "topic",
    "kafka-configs": "topic config",
    "kafka-consumer-groups": "group",
    "kafka-get-offsets": "topic describe",
    "kafka-reassign-partitions": "cluster",
    **dict.fromkeys(("kafka-acls", "acls"), "acl"),
    **dict.fromkeys(("users", "passwd"), "user"),
    "kafka-server-start": "broker serve",
    **dict.fromkeys(("kafka-console-consumer", "kcat", "kafkacat", "cat", "tail", "read", "subscribe"), "consume"),
    **dict.fromkeys(("kafka-console-producer", "send", "publish", "write"), "produce"),
    **dict.fromkeys(("start", "run", "init", "dev"), "up"),
    **dict.fromkeys(("serve", "server"), "broker serve"),
    **dict.fromkeys(("status", "health", "check", "ping"), "doctor"),
    **dict.fromkeys(("ingest", "import"), "load"),
    **dict.fromkeys(("backfill", "rerun", "reload"), "replay"),
    "upgrade": "ledger upgrade",
    "metrics": "exporter",
    "rebase": "pipeline rebase",
    "version": "--version",
    "help": "--help",
}
# Within a group of commands: synonyms, of which the group has one.
SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset({"ls", "list", "get", "all"}),
    frozenset({"describe", "show", "get", "info", "inspect"}),
    frozenset({"create", "register", "add", "new", "make"}),
    frozenset({"delete", "remove", "rm", "drop"}),
    frozenset({"alter", "config", "set", "configure", "change", "edit", "update"}),
    frozenset({"seek", "reset-offsets", "reset", "rewind"}),
    frozenset({"audit", "check", "verify", "count"}),
    frozenset({"diff", "compare"}),
    frozenset({"explain", "why", "can-i"}),
)
# Options of other tools, wherever they are typed.
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("--bootstrap-servers", "--bootstrap", "--broker", "--brokers", "--broker-list", "--zookeeper"),
        "--bootstrap-server HOST:PORT",
    ),
    "--command-config": "--client-config FILE",
    "--consumer.config": "--client-config FILE",
    "--producer.config": "--client-config FILE",
    "--from-beginning": "-o beginning",
    "--max-messages": "-c COUNT",
    "--timeout-ms": "-e, which ends at the end",
    "--property": "--format or -K",
    "--list": "the command ls",
    "--describe": "the command describe",
    "--create": "the command create",
    "--delete": "the command delete",
    "--alter": "the command alter or config",
    "--reset-offsets": "the command seek",
    "--to-earliest": "the command seek",
    "--from": "--since INSTANT",
    "--start": "--since INSTANT",
    "--to": "--until INSTANT",
    "--end": "--until INSTANT",
    "--force": "--execute",
    "--dry-run": "nothing: without --execute it is a dry run",
}
UP_SETS = ("LOGBUS_WAREHOUSE_URL",)  # of the variables that an option asks for
UP_SETS_IT = f"`logbus up` starts a PostgreSQL here, and `source {UP_ENVIRONMENT}` in the directory where it runs sets it"
EXTRA_ARGUMENT = re.compile(r"Got unexpected extra argument \((\S+)\)")
TOPIC_OPTIONS = frozenset({"-t", "--topic", "--topics"})  # of commands that take the topic as their argument


def with_suggestion(error: click.UsageError) -> click.UsageError:
    """The error with what was probably meant; unchanged without a guess. Our words for a command take precedence over click's."""
    if (argument := EXTRA_ARGUMENT.match(error.message)) and error.ctx is not None and takes_pipeline(error.ctx):
        return click.UsageError(f"{error.message.rstrip('.')}. Did you mean --pipeline {argument[1]}?", error.ctx)
    if isinstance(error, click.MissingParameter) and error.param is not None and error.param.envvar in UP_SETS:
        return click.UsageError(f"{error.format_message().rstrip('.')}: {UP_SETS_IT}", error.ctx)
    text, suggested, _ = error.format_message().partition(" Did you mean")
    if suggested and isinstance(error, click.NoSuchOption):
        return error
    meant = option_meant(error) if isinstance(error, click.NoSuchOption) else command_meant(error)
    return click.UsageError(f"{text.rstrip('.')}. Did you mean {meant}?", error.ctx) if meant else error


def takes_pipeline(context: click.Context) -> bool:
    return any("--pipeline" in param.opts for param in context.command.params)


def option_meant(error: click.NoSuchOption) -> str | None:
    name, context = error.option_name, error.ctx
    if context is None or ((meant := OPTIONS.get(name)) is None and name not in TOPIC_OPTIONS):
        return None
    if name not in TOPIC_OPTIONS:
        return meant if meant is not None and is_there(meant, context) else None
    arguments = [param.make_metavar(context) for param in context.command.params if isinstance(param, click.Argument)]
    return f"{context.command_path} {' '.join(arguments)}" if any("TOPIC" in metavar for metavar in arguments) else None


def is_there(meant: str, context: click.Context) -> bool:
    """Whether the current command has that option, or its group that command."""
    first = meant.split(maxsplit=1)[0].rstrip(":,")
    if first.startswith("-"):
        return any(first in param.opts for param in context.command.params)
    group = context.parent.command if context.parent is not None else None
    return first != "the" or (isinstance(group, click.Group) and meant.split()[2] in group.list_commands(context))


def command_meant(error: click.UsageError) -> str | None:
    """`error` names the command that its group does not have."""
    context, (_, quote, rest) = error.ctx, error.message.partition("No such command '")
    if context is None or not quote or not isinstance(context.command, click.Group):
        return None
    word = rest.partition("'")[0].removesuffix(".sh")
    if context.parent is None:
        meant_names = (
            [OTHER_TOOLS[word]] if word in OTHER_TOOLS else get_close_matches(word, context.command.list_commands(context), n=1)
        )
        return f"{context.command_path} {meant_names[0]}" if meant_names else None
    own = set(context.command.list_commands(context))
    meant = sorted({name for words in SYNONYMS if word in words for name in words & own})
    return " or ".join(f"{context.command_path} {name}" for name in meant) or None


def note_origin(
    context: click.Context, bootstrap: str, source: ParameterSource | None, client_config: Path | None = None
) -> None:
    """`client_config`: the file, if it names the address itself."""
    context.meta[ADDRESS_ORIGIN] = address_origin(bootstrap, source, client_config)


def address_origin(bootstrap: str, source: ParameterSource | None, client_config: Path | None = None) -> str:
    """Where the address came from, and how to name another."""
    if client_config is not None:
        return f"the address is from {client_config}, which takes precedence over --bootstrap-server and LOGBUS_BOOTSTRAP_SERVER"
    if source is ParameterSource.COMMANDLINE:
        return f"{bootstrap} is from the command line: {ANOTHER}"
    if source is ParameterSource.ENVIRONMENT:
        return f"{bootstrap} is from the environment (LOGBUS_BOOTSTRAP_SERVER): {ANOTHER}"
    return f"{bootstrap} is the default, as neither --bootstrap-server nor LOGBUS_BOOTSTRAP_SERVER names a broker: {ANOTHER}"
