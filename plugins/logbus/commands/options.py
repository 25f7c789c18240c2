"""Options that several subcommands share, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from logbus.errors import UserError
from logbus.warehouse.engine import connect
from logbus.windows.ledger import Ledger
from logbus.windows.migrations import create_ledger
from logbus.windows.model import parse_instant


class Instant(click.ParamType[datetime]):
    """An ISO 8601 instant; UTC where no zone is given."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value)
        except ValueError:
            self.fail(f"{value!r} is no instant; write it like 2015-05-17T10:00:00Z", param, ctx)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

warehouse_option: Decorator = click.option(
    "--warehouse",
    "warehouse_url",
    required=True,
    envvar="LOGBUS_WAREHOUSE_URL",
    help="URL of the PostgreSQL that holds the tables.",
)
bootstrap_option: Decorator = click.option(
    "--bootstrap-server",
    "bootstrap",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="LOGBUS_BOOTSTRAP_SERVER",
    help="Address of the broker, HOST:PORT.",
)
client_config_option: Decorator = click.option(
    "--client-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with more client settings (security.protocol, ...).",
)
pipeline_option: Decorator = click.option("--pipeline", "pipeline_name", required=True, help="A registered pipeline.")
since_option: Decorator = click.option("--since", type=Instant(), help="First instant; by default that of the first record.")
until_option: Decorator = click.option("--until", type=Instant(), help="Last instant; by default that of the last record.")
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def client_config(bootstrap: str, path: Path | None) -> dict[str, Any]:
    """The configuration of every Kafka client a command makes."""
    if path is None:
        return {"bootstrap.servers": bootstrap}
    try:
        settings = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read the client settings {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the client settings {path} are no JSON: {error}") from None
    return {"bootstrap.servers": bootstrap, **settings}


def open_ledger(warehouse_url: str) -> Ledger:
    """The ledger, made or brought up to date if need be."""
    engine = connect(warehouse_url)
    create_ledger(engine)
    return Ledger(engine)


def clock() -> datetime:
    return datetime.now(UTC)
