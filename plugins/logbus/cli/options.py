"""Options that several subcommands share, the values they stand for, and how a shell completes them (`logbus completion SHELL`
prints the script).

Each option has one name everywhere and, where it is worth it, an environment variable. Nothing heavy is imported before a command
needs it: completion and `--help` import this module, too.

Names of topics and groups come from the broker, those of pipelines from the ledger, if they answer at once: the user is waiting
between two keys. What does not answer within a second completes to nothing, and nothing is ever printed.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from logbus import errors, model
from logbus.cli import endings, output
from logbus.kafka import client_config as client_configs

if TYPE_CHECKING:
    from logbus.loads.ledger import Ledger


PROGRAM = "logbus"
VARIABLE = "_LOGBUS_COMPLETE"


class WholeSentences(FishComplete):
    """click's script splits each answer at every comma, and so the help text after the name; only the first one separates."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": WholeSentences}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion_command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  echo 'eval "$(logbus completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(logbus completion zsh)"' >> ~/.zshrc   # after: autoload -Uz compinit && compinit
    fish  logbus completion fish > ~/.config/fish/completions/logbus.fish

    Bash must be 4.4 or newer. Names of topics and groups come from --bootstrap-server, those of pipelines from --warehouse, or
    from where LOGBUS_BOOTSTRAP_SERVER and LOGBUS_WAREHOUSE_URL point.
    """
    program = click.get_current_context().find_root().command
    # The base class's `source`: bash's own starts another program to check bash's version.
    output.write_raw(ShellComplete.source(SHELLS[shell](program, {}, PROGRAM, VARIABLE)) + "\n")


SECONDS_MAX = 1.0
Ask = Callable[[click.Context], Iterable[str]]


def completer(ask: Ask, seconds_max: float = SECONDS_MAX) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names that begin with what was typed; none if anything fails."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        found_names: list[str] = []

        def names() -> None:
            with suppress(Exception):
                found_names.extend(ask(ctx))

        # In a thread that ends with the process: libpq waits two seconds at least for a server that does not answer.
        asking = Thread(target=names, daemon=True)
        asking.start()
        asking.join(seconds_max)
        # Nobody can type a name that is not printable, and a shell would pass it on to the terminal.
        return sorted(name for name in found_names if name.startswith(incomplete) and name.isprintable())

    return complete


def client(ctx: click.Context) -> Any:
    from logbus.kafka.client import Client
    from logbus.kafka.client_config import read_client_config

    given = ctx.params.get("bootstrap") or os.environ.get("LOGBUS_BOOTSTRAP_SERVER") or "127.0.0.1:9092"
    path = ctx.params.get("client_config") or os.environ.get("LOGBUS_CLIENT_CONFIG")
    settings = read_client_config(Path(path)) if path else {}
    return Client.for_page({"bootstrap.servers": given, **settings, "log_level": 0}, SECONDS_MAX)


def topics(ctx: click.Context) -> Iterable[str]:
    return [str(name) for name in client(ctx).metadata().topics]


def groups(ctx: click.Context) -> Iterable[str]:
    broker = client(ctx)
    broker.metadata()  # fails at once if no broker answers, which listing groups does not
    return [str(group.group_id) for group in broker.ask_group_names().result(SECONDS_MAX).valid]


def in_ledger(table: str) -> Ask:
    """The names in one of the ledger's tables."""

    def names(ctx: click.Context) -> Iterable[str]:
        import psycopg

        url = str(ctx.params.get("warehouse_url") or os.environ["LOGBUS_WAREHOUSE_URL"])
        rest = url.partition("://")[2]  # without SQLAlchemy's driver name
        with psycopg.connect(f"postgresql://{rest}", connect_timeout=int(2 * SECONDS_MAX)) as connection:
            return [str(name) for (name,) in connection.execute(f"select name from logbus.{table}".encode())]

    return names


complete_topics = completer(topics)
complete_groups = completer(groups)
complete_pipelines = completer(in_ledger("pipeline"))
complete_streams = completer(in_ledger("stream"))


# Options that several subcommands share, and the values they stand for.


TABLE, JSON = "table", "json"


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """An ISO 8601 instant; UTC where no zone is given."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return model.parse_instant(value)
        except ValueError as error:
            takes_pipeline = ctx is not None and any(parameter.name == "pipeline_name" for parameter in ctx.command.params)
            is_name = takes_pipeline and isinstance(param, click.Argument) and re.fullmatch(r"[A-Za-z_][\w.-]*", value)
            meant = f"; a pipeline is named by --pipeline {value}" if is_name else ""
            self.fail(f"{error}{meant}", param, ctx)


class Hours(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Hours, as a number or with a unit: `36`, `36h`, `7d`."""

    name = "hours"
    UNITS: ClassVar[Mapping[str, float]] = {"": 1.0, "h": 1.0, "d": 24.0, "m": 1 / 60}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdm]?)", value.strip())
        if match is None:
            self.fail(f"{value!r} is not a number of hours; write it like 36, 36h or 7d", param, ctx)
        return float(match[1]) * self.UNITS[match[2]]


class TimeZone(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A zone by its name in the IANA database."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(value)
        except (OSError, ValueError, KeyError):
            self.fail(f"{value!r} is not a time zone that this machine knows; write it like Europe/Berlin or UTC", param, ctx)


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """`name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, text = value.partition("=")
        if not name.strip() or not separator:
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name.strip(), text.strip()


class ClientSetting(Setting):
    """A client setting that others may read; secrets belong in a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, text = super().convert(value, param, ctx)
        if client_configs.is_secret(name):
            self.fail(
                f"{name} does not belong on a command line, which others can read: put it into --client-config FILE", param, ctx
            )
        return name, text


Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


def without_password(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """A URL that others can read, in `ps` and in a shell's history, holds no password."""
    if url is None or context.get_parameter_source(str(parameter.name)) is not ParameterSource.COMMANDLINE:
        return url
    from logbus.loads.engine import warehouse_url

    if warehouse_url(url).password is not None:
        by_variable = f"pass the URL in {parameter.envvar}, or " if parameter.envvar else ""
        raise click.BadParameter(
            f"a password does not belong on a command line, which others can read: {by_variable}leave it out and put it into "
            "~/.pgpass or PGPASSWORD (`read -rs PGPASSWORD; export PGPASSWORD` asks for it)"
        )
    return url


_warehouse = functools.partial(
    click.option,
    "--warehouse",
    "warehouse_url",
    callback=without_password,
    envvar="LOGBUS_WAREHOUSE_URL",
    show_envvar=True,
    metavar="URL",
    help="The PostgreSQL that holds the tables and the ledger.",
)
warehouse_option: Decorator = _warehouse(required=True)
warehouse_if_named_option: Decorator = _warehouse()
_bootstrap_option: Decorator = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="LOGBUS_BOOTSTRAP_SERVER",
    show_envvar=True,
    metavar="HOST:PORT",
    help="Address of the broker.",
)
client_config_option: Decorator = click.option(
    "--client-config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="LOGBUS_CLIENT_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="File with more client settings: client.properties as Kafka's tools take it, kcat's, or JSON.",
)
pipeline_option: Decorator = click.option(
    "--pipeline",
    "pipeline_name",
    required=True,
    metavar="NAME",
    shell_complete=complete_pipelines,
    help="A registered pipeline.",
)
supersede_option: Decorator = click.option(
    "--supersede", is_flag=True, help="Take over windows that another run is working on; its attempts can then no longer commit."
)
since_option: Decorator = click.option(
    "--since", type=Instant(), metavar="INSTANT", help="First instant; by default that of the first record."
)
until_option: Decorator = click.option(
    "--until", type=Instant(), metavar="INSTANT", help="Last instant; by default that of the last record."
)
execute_option: Decorator = click.option(
    "--execute", "is_executed", is_flag=True, help="Do it. Without this, only show what would be done."
)


def json_option(function: Function) -> Function:
    """`-o json|table`, and `--json` for short; the command gets `as_json`."""

    @functools.wraps(function)
    def command(*arguments: Any, output_form: str, is_json: bool, **options: Any) -> Any:
        return function(*arguments, as_json=is_json or output_form == JSON, **options)

    short = click.option("--json", "is_json", is_flag=True, help="The same as -o json.")(command)
    form = click.option(
        "-o",
        "--output",
        "output_form",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="The form of the output.",
    )
    return form(short)


def topics_argument(*, required: bool) -> Decorator:
    """Topics as arguments, or by kafka-topics' own option; the command gets `topics`."""
    return names_argument("topics", "TOPIC", "--topic", "A topic, the way kafka-topics spells it.", complete_topics, required)


def groups_argument(*, required: bool) -> Decorator:
    """Consumer groups as arguments, or by kafka-consumer-groups' own option; the command gets `groups`."""
    return names_argument(
        "groups", "GROUP", "--group", "A group, the way kafka-consumer-groups spells it.", complete_groups, required
    )


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def names_argument(name: str, metavar: str, option: str, sentence: str, complete: Completer, required: bool) -> Decorator:
    """Names given as arguments, by a repeated option, or both."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*arguments: Any, named: Sequence[str], also: Sequence[str], **options: Any) -> Any:
            given = tuple(dict.fromkeys((*named, *also)))
            if required and not given:
                raise click.UsageError(f"name at least one {metavar}")
            return function(*arguments, **{name: given}, **options)

        by_option = click.option(option, "also", multiple=True, metavar="NAME", help=sentence, shell_complete=complete)(command)
        return click.argument(
            "named", nargs=-1, metavar=f"{metavar}..." if required else f"[{metavar}]...", shell_complete=complete
        )(by_option)

    return decorate


def with_client(function: Function) -> Function:
    """Where the broker is and how to talk to it; the command gets `config`, the configuration of its clients."""

    @functools.wraps(function)
    def command(*arguments: Any, bootstrap: str, client_config: Path | None, **options: Any) -> Any:
        of_file = client_configs.read_client_config(client_config) if client_config else {}
        context = click.get_current_context()
        file = client_config if "bootstrap.servers" in of_file else None
        endings.note_origin(context, bootstrap, context.get_parameter_source("bootstrap"), file)
        return function(*arguments, config={"bootstrap.servers": bootstrap, **of_file}, **options)

    return _bootstrap_option(client_config_option(command))


def with_broker(function: Function) -> Function:
    """`with_client`, and settings of the client on the command line."""

    @functools.wraps(function)
    def command(*arguments: Any, config: dict[str, Any], client_settings: Iterable[tuple[str, str]], **options: Any) -> Any:
        named = dict(client_settings)
        if address := named.get("bootstrap.servers"):
            endings.note_origin(click.get_current_context(), address, ParameterSource.COMMANDLINE)
        return function(*arguments, config={**config, **named}, **options)

    setting = click.option(
        "-X",
        "--client-option",
        "client_settings",
        multiple=True,
        type=ClientSetting(),
        help="A librdkafka setting; may be repeated.",
    )
    return with_client(setting(command))


def parse_settings(text: str) -> dict[str, Any]:
    """A parser's settings, as `--settings` takes them."""
    try:
        settings, reason = json.loads(text), ""
    except ValueError as error:
        settings, reason = None, f": {error}"
    if not isinstance(settings, dict):
        raise errors.UserError(f'--settings must be a JSON object, such as {{"fields": ["time"]}}{reason}')
    return settings


def open_ledger(warehouse_url: str) -> Ledger:
    """The ledger, created or upgraded if need be."""
    from logbus.loads.engine import connect
    from logbus.loads.ledger import Ledger
    from logbus.windows.migrations import create_ledger

    engine = connect(warehouse_url)
    create_ledger(engine)
    return Ledger(engine)


def clock() -> datetime:
    return datetime.now(UTC)
