"""Make the warehouse's database, named by LOGBUS_WAREHOUSE_URL, beside Airflow's on the same server, unless it is there."""

from __future__ import annotations

import os

import psycopg
from logbus.warehouse.engine import libpq_uri
from psycopg import sql
from sqlalchemy import make_url


def create(warehouse_url: str, maintenance_database: str = "postgres") -> bool:
    """Whether it was made now."""
    url = make_url(warehouse_url)
    server = libpq_uri(url.set(database=maintenance_database).render_as_string(hide_password=False))
    with psycopg.connect(server, autocommit=True) as connection:
        if connection.execute("select 1 from pg_database where datname = %s", [url.database]).fetchone():
            return False
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(str(url.database))))
        return True


if __name__ == "__main__":
    print("warehouse:", "made" if create(os.environ["LOGBUS_WAREHOUSE_URL"]) else "there already")
