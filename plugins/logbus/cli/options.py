"""Options that several subcommands share, and the values they stand for.

Each has one name everywhere and, where it is worth it, an environment variable. Nothing heavy is imported before a command needs
it: completion and `--help` import this module, too.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource

from logbus import errors, model
from logbus.cli import completion, suggestions
from logbus.kafka import client_config as client_configs

if TYPE_CHECKING:
    from logbus.loads.ledger import Ledger

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
    shell_complete=completion.complete_pipelines,
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
    return names_argument(
        "topics", "TOPIC", "--topic", "A topic, the way kafka-topics spells it.", completion.complete_topics, required
    )


def groups_argument(*, required: bool) -> Decorator:
    """Consumer groups as arguments, or by kafka-consumer-groups' own option; the command gets `groups`."""
    return names_argument(
        "groups", "GROUP", "--group", "A group, the way kafka-consumer-groups spells it.", completion.complete_groups, required
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
        suggestions.note_origin(context, bootstrap, context.get_parameter_source("bootstrap"), file)
        return function(*arguments, config={"bootstrap.servers": bootstrap, **of_file}, **options)

    return _bootstrap_option(client_config_option(command))


def with_broker(function: Function) -> Function:
    """`with_client`, and settings of the client on the command line."""

    @functools.wraps(function)
    def command(*arguments: Any, config: dict[str, Any], client_settings: Iterable[tuple[str, str]], **options: Any) -> Any:
        named = dict(client_settings)
        if address := named.get("bootstrap.servers"):
            suggestions.note_origin(click.get_current_context(), address, ParameterSource.COMMANDLINE)
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
