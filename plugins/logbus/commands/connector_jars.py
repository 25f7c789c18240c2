"""`logbus connector-jars`: fetch the jars of Spark's Kafka connector."""

from __future__ import annotations

from pathlib import Path

import click

from logbus.commands import output
from logbus.connector_jars import JARS_VARIABLE, fetch


@click.command("connector-jars")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Fetch the jars of Spark's Kafka connector into DIRECTORY, for pipelines with {"reader": "connector"}."""
    fetch(directory)
    output.tell(f"the jars are in {directory}: set {JARS_VARIABLE}={directory.absolute()} where spark-submit is started")
