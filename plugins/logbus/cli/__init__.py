"""The `logbus` command: one group that imports a subcommand only when it runs.

Airflow, Spark and pyarrow take seconds to import, so the group finds its subcommands in a table of module paths, in sections by
purpose, and imports only the one that runs; help and completion read the table alone. A `LogbusError` is printed as one line (if
the broker does not answer, a second line says where its address came from), with the exit status that logbus.errors has for
it; an interrupt, a closed output pipe and a warehouse that fails or refuses in the middle end the same way. Anything else is a
bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from click.exceptions import Exit

from logbus import errors
from logbus.cli import endings, output
from logbus.errors import ExitCode

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "See": {
        "lag": ("logbus.cli.monitoring:lag_command", "Show how many closed hours are not loaded, and since when."),
        "window": ("logbus.cli.window:command", "List, show, compare and audit the windows in the ledger."),
        "dead-letter": ("logbus.cli.dead_letter:command", "List, show and export records that did not parse."),
        "aggregate": ("logbus.cli.aggregate:command", "List, show, bring up to date and verify aggregates."),
        "stream": ("logbus.cli.stream:command", "Define, run, list and prove streams: aggregates of what arrives."),
        "doctor": ("logbus.cli.monitoring:doctor_command", "Show what is wrong and what to type."),
        "audit-table": (
            "logbus.cli.tables:audit_table_command",
            "Find what is missing, doubled or foreign in a table that others load.",
        ),
        "query": ("logbus.cli.tables:query_command", "Query the Iceberg tables of pipelines in SQL, with DuckDB."),
    },
    "Move records": {
        "produce": ("logbus.cli.console:produce_command", "Send lines to a topic."),
        "consume": ("logbus.cli.console:consume_command", "Print the records of a topic; -f follows it."),
        "ship": ("logbus.cli.ship:command", "Send log files to a topic, continuing where the last run ended."),
        "try": ("logbus.cli.try_log:command", "Show how a log would be read: its times, its columns, what to type."),
        "sample": ("logbus.cli.try_log:sample_command", "Write a small realistic access log."),
    },
    "Load": {
        "demo": ("logbus.cli.demo:command", "Take a log through broker, Airflow and Spark into PostgreSQL, and prove it."),
        "pipeline": ("logbus.cli.pipeline:command", "List and register pipelines."),
        "load": (
            "logbus.cli.load:command",
            "Load the closed hours of a topic with one Spark application, without Airflow.",
        ),
        "replay": ("logbus.cli.load:replay_command", "Load windows again, from the same records; plan shows what that would do."),
        "redrive": ("logbus.cli.dead_letter:redrive_command", "Parse dead letters again, into the same windows."),
    },
    "Administer": {
        "up": ("logbus.cli.up:command", "Run the broker and a PostgreSQL on this machine until Ctrl-C."),
        "broker": ("logbus.cli.up:broker_command", "Run the log broker (python -m logbus_broker)."),
        "cluster": ("logbus.cli.cluster:command", "Show brokers, leaders, and replicas that are not in sync."),
        "topic": ("logbus.cli.topic:command", "List, create, describe, change and delete topics."),
        "group": ("logbus.cli.group:command", "List, describe and delete consumer groups, and move their offsets."),
        "registry": ("logbus.cli.registry:command", "Serve a schema registry; list the schemas in one."),
        "user": ("logbus.cli.users:user_command", "List, add and remove users, and set their passwords."),
        "security": ("logbus.cli.secure_home:command", "Make and renew certificates, users and ACLs for a broker elsewhere."),
        "acl": ("logbus.cli.users:acl_command", "List, add and remove ACLs; explain says which one decides."),
        "retention": ("logbus.cli.retention:command", "Delete old records once every pipeline has loaded them."),
        "exporter": ("logbus.cli.exporter:command", "Serve lag, windows, topics and groups to Prometheus."),
        "maintain": ("logbus.cli.maintenance:maintain_command", "Merge old hourly partitions into days, remove unused files."),
        "ledger": (
            "logbus.cli.maintenance:ledger_command",
            "Show the ledger's version, upgrade it, rebuild a lost one.",
        ),
        "roles": ("logbus.cli.maintenance:roles_command", "Make the warehouse's roles: who owns, who loads, who reads."),
        "connect": ("logbus.cli.connect:command", "Try how to reach a Kafka cluster, and write down what works."),
        "airflow": ("logbus.cli.maintenance:airflow_command", "Create the pool and the connections in an Airflow of your own."),
        "completion": ("logbus.cli.options:completion_command", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it runs, not when the group's help is shown or a name is completed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module_name), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, sentence) for name, (_, sentence) in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(self, *words: Any, **extra: Any) -> Any:
        # Python has no object for a stream that was closed before it started (`logbus ... >&-`): what is written is not wanted.
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open as long as the process
        return super().main(*words, **extra)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        try:  # --help and --version print in here
            return super().make_context(*words, **extra)
        except BrokenPipeError:
            endings.discard_stdout()
            raise Exit(ExitCode.BROKEN_PIPE) from None
        except OSError as error:
            if error.errno not in ERRORS_OF_THE_MACHINE:
                raise
            output.echo_err(os_error_line(error))
            raise Exit(ExitCode.FAILED) from None

    def invoke(self, ctx: click.Context) -> object:
        return exit_with_status(ctx, lambda: super(LazyGroup, self).invoke(ctx))


def exit_with_status(ctx: click.Context, run: Callable[[], object]) -> object:
    """The result of `run`; or one line and the exit status for whatever ended it."""
    try:
        return run()
    except errors.LogbusError as error:
        message, code = f"error: {error}", errors.exit_code_of(error)
        if code is ExitCode.UNREACHABLE and isinstance(error, errors.BrokerUnavailable) and endings.ADDRESS_ORIGIN in ctx.meta:
            message += f"\n{ctx.meta[endings.ADDRESS_ORIGIN]}"
    except click.UsageError as error:
        raise endings.with_suggestion(error) from None
    except endings.Stopped as stop:
        message, code = str(stop), stop.exit_code
    except KeyboardInterrupt as interrupt:
        message, code = "interrupted", endings.exit_code_of(interrupt)
    except BrokenPipeError:
        endings.discard_stdout()
        message, code = "", ExitCode.BROKEN_PIPE
    except OSError as error:
        if error.errno not in ERRORS_OF_THE_MACHINE:
            raise
        message, code = os_error_line(error), ExitCode.FAILED
    except ModuleNotFoundError as error:
        missing = errors.ExtraMissing.of(error)
        if missing is None:
            raise
        message, code = f"error: {missing}", errors.exit_code_of(missing)
    except Exception as error:
        from logbus.windows.sql_errors import refusal_of  # imports SQLAlchemy, as whatever raised such an error has

        refusal = refusal_of(error)
        if refusal is None:
            raise
        message, code = f"error: {refusal}", errors.exit_code_of(refusal)
    if message:
        output.echo_err(*message.split("\n"))
    ctx.exit(code)


# A full disk, a directory without permission, no more descriptors: no fault of the program that a traceback would help to find.
ERRORS_OF_THE_MACHINE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EMFILE)
)


def os_error_line(error: OSError) -> str:
    """The line that is shown for such an error."""
    if error.filename is not None:
        return f"error: {error.strerror}: {error.filename}"
    try:
        sys.stdout.flush()
    except OSError:  # the output is what could not be written: it must not be tried again at exit
        endings.discard_stdout()
    return f"error: {error.strerror or str(error) or type(error).__name__}"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="logbus")
def main() -> None:
    """Every hour of every topic loaded exactly once, with proof.

    Exit statuses, environment variables and how output is chosen: docs/cli.md. Completion: logbus completion --help.
    """
