"""`logbus airflow setup`: the pool and the connections that our DAGs need, in an Airflow of your own.

Run it where the scheduler runs, with its configuration: it writes into Airflow's own database. What exists already stays, so it
may be run again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from sqlalchemy.engine import URL

from logbus import provider, spark_submit
from logbus.cli import options
from logbus.loads.engine import warehouse_url as parse_warehouse_url


@click.group("airflow")
def command() -> None:
    """Prepare an Airflow for logbus."""


@command.command("setup")
@options.warehouse_option
@options.with_client
@click.option("--master", default=spark_submit.LOCAL_MASTER, show_default=True, help="Where Spark runs.")
@click.option("--slots", type=click.IntRange(1), default=1, show_default=True, help="How many Spark drivers may run in parallel.")
@click.option("--replace", is_flag=True, help="Also change connections that exist already.")
def setup(warehouse_url: str, config: Mapping[str, Any], master: str, slots: int, replace: bool) -> None:
    """Create the pool for loads and the connections kafka_default, warehouse_default and spark_default."""
    connections = {
        "kafka_default": {"conn_type": "kafka", "extra": config},
        "warehouse_default": warehouse_connection(parse_warehouse_url(warehouse_url)),
        "spark_default": {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "client"}},
    }
    make_pool(slots)
    click.echo(f"pool {spark_submit.LOAD_POOL}: {slots} slot{'s' if slots > 1 else ''}")
    for conn_id, fields in connections.items():
        click.echo(
            f"connection {conn_id}: {'created' if make_connection(conn_id, fields, replace) else 'already exists, unchanged'}"
        )


def warehouse_connection(url: URL) -> dict[str, Any]:
    """The fields of the connection that names the same database as the URL."""
    parameters = {key: value for key, value in url.query.items() if key != "host"}
    socket_directory = url.query.get("host")
    return {
        "conn_type": provider.CONNECTION_TYPE,
        "host": socket_directory or url.host,
        "port": url.port,
        "login": url.username,
        "password": url.password,
        "schema": url.database,
        "extra": parameters,
    }


def make_pool(slots: int) -> None:
    from airflow.models.pool import Pool

    Pool.create_or_update_pool(
        spark_submit.LOAD_POOL, slots=slots, description=spark_submit.LOAD_POOL_DESCRIPTION, include_deferred=False
    )


def make_connection(conn_id: str, fields: Mapping[str, Any], replace: bool) -> bool:
    """Whether it was created or replaced now. The password is stored in Airflow's database, encrypted with its key."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        former = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
        if former is not None and not replace:
            return False
        if former is not None:
            session.delete(former)
            session.flush()
        extra = fields.get("extra") or None  # Airflow turns a dictionary into text, but leaves an empty one as it is
        session.add(Connection(conn_id=conn_id, **{**fields, "extra": extra}))
        return True
