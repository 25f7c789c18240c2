"""`python -m broker`: serve, and list the settings. Errors a person can mend are one line and exit code 1."""

from __future__ import annotations

import sys
from dataclasses import fields

import click

from broker.config import BrokerConfig, LogConfig, load_config
from broker.config_texts import DOCUMENTATION
from broker.errors import ConfigError, StartupError, StorageError
from broker.logs import set_up_logging

_MENDABLE = (ConfigError, StartupError, StorageError)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The logbus broker: a log for records, spoken to with the Kafka protocol."""


@main.command()
@click.option("--config", "config_file", metavar="FILE", help="A properties file with Kafka's own setting names.")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="One setting; wins over the file. May be repeated."
)
@click.option("--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), show_default=True)
def serve(config_file: str | None, overrides: tuple[str, ...], log_level: str) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        config = load_config(config_file, overrides)
        set_up_logging(sys.stderr, level=log_level, form=config.log_format)
        from broker.node import Node  # here, so that --help and a wrong setting answer at once

        node = Node(config)
    except _MENDABLE as error:
        raise SystemExit(f"error: {error}") from None
    node.serve()


@main.command()
def settings() -> None:
    """List every setting with what it is for and its default: a configuration file to start from."""
    broker, log = BrokerConfig(), LogConfig()
    rows = [(item.metadata["name"], getattr(broker, item.name)) for item in fields(BrokerConfig) if item.metadata]
    rows += [(item.metadata["name"], getattr(log, item.name)) for item in fields(LogConfig)]
    for name, default in sorted(rows):
        text = str(default).lower() if isinstance(default, bool) else str(default)
        click.echo(f"# {DOCUMENTATION[name]}")
        click.echo(f"#{name}=" if default is None else f"{name}={text}")
