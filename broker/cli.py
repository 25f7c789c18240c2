"""`python -m broker`: serve, list the settings, look at stored files. Errors a person can mend are one line and exit code 1."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import click

from broker.config import BrokerConfig, LogConfig
from broker.config_file import load_config
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


@main.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def verify(directory: Path) -> None:
    """Read every segment, index and checkpoint of a data directory, or of one partition in it, and name each fault with its
    file and position. Changes nothing; the broker may be running. Exit status 1 where there is a fault."""
    from broker.inspection.verify import Verification
    from broker.storage.filesystem import FileSystem

    run, count = Verification(directory, FileSystem()), 0
    try:
        for fault in run.faults():
            click.echo(fault)
            count += 1
    except OSError as error:
        raise SystemExit(f"error: {error}") from None
    read = f"{run.partitions} partitions, {run.segments} segments, {run.batches} batches, {run.read_bytes} bytes"
    click.echo(f"{count or 'no'} fault{'' if count == 1 else 's'} in {read}")
    if count:
        raise SystemExit(1)


@main.command("dump-log")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--records", is_flag=True, help="The records in each batch, too, with their keys and values.")
def dump_log(files: tuple[Path, ...], records: bool) -> None:
    """Print the batches of a .log file, the entries of an .index or .timeindex, or the producers of a .snapshot, in the form of
    Apache Kafka's kafka-dump-log."""
    from broker.inspection.dump import dump_file
    from broker.storage.filesystem import FileSystem

    try:
        for file in files:
            for line in dump_file(file, FileSystem(), records=records):
                click.echo(line)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
