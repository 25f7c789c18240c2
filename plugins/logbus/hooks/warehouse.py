"""The warehouse's Airflow connection: PostgreSQL, as the type `logbus_warehouse` or a plain `postgres` one.

Host, port, user, password and database have their own fields; a host that begins with "/" is a socket directory. The extra
holds libpq parameters (sslmode and the like); options that only Airflow's postgres hook uses are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from logbus import errors, formatting, provider
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.windows.migrations import create_ledger

CONNECTION_TYPES = (provider.CONNECTION_TYPE, "postgres", "postgresql")
LIBPQ_PARAMETERS = (
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "channel_binding"),
    *("options", "application_name", "target_session_attrs", "connect_timeout"),
)
TEST_TIMEOUT_SECONDS = 10  # whoever pressed the button waits for it, and can press it again


def mask_everywhere(secret: str) -> None:
    """By its value, in everything that this process logs, however it is written there."""
    for spelling in formatting.spellings(secret):
        mask_secret(spelling)


class WarehouseHook(BaseHook):
    """Reads the connection; connects once, when `get_engine` or `ledger` is first called."""

    conn_name_attr = "warehouse_conn_id"
    default_conn_name = "warehouse_default"
    conn_type = provider.CONNECTION_TYPE
    hook_name = "logbus warehouse"

    def __init__(self, warehouse_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.warehouse_conn_id = warehouse_conn_id
        self._engine: Engine | None = None

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, including the password, which is masked in logs from now on."""
        connection = self.get_connection(self.warehouse_conn_id)
        if connection.conn_type not in CONNECTION_TYPES:
            raise errors.UserError(
                f"the connection {self.warehouse_conn_id!r} is of type {connection.conn_type!r}: "
                f"the warehouse is PostgreSQL, so make it {provider.CONNECTION_TYPE!r} or 'postgres'"
            )
        if connection.password:
            mask_everywhere(connection.password)
        return warehouse_url(
            host=connection.host,
            port=connection.port,
            login=connection.login,
            password=connection.password,
            database=connection.schema,
            extra=connection.extra_dejson,
        )

    def get_engine(self) -> Engine:
        if self._engine is None:
            self._engine = connect(self.url)
        return self._engine

    def ledger(self) -> Ledger:
        """The ledger of this warehouse; creates or migrates its tables if necessary."""
        engine = self.get_engine()
        create_ledger(engine)
        return Ledger(engine)

    def test_connection(self) -> tuple[bool, str]:
        """For the Test button of Airflow's connection form."""
        try:
            connect(self.url, timeout_seconds=TEST_TIMEOUT_SECONDS).dispose()
        except errors.LogbusError as error:
            return False, str(error)
        return True, "Connected to the warehouse."


def warehouse_url(
    *,
    host: str | None,
    port: int | None,
    login: str | None,
    password: str | None,
    database: str | None,
    extra: Mapping[str, Any],
) -> str:
    """The connection's fields as one URL."""
    parameters = {key: str(value) for key, value in extra.items() if key in LIBPQ_PARAMETERS}
    is_socket_directory = host is not None and host.startswith("/")
    if is_socket_directory:
        parameters["host"] = str(host)
    url = URL.create(
        "postgresql+psycopg",
        username=login or None,
        password=password or None,
        host=None if is_socket_directory else host,
        port=port,
        database=database or None,
        query=parameters,
    )
    return url.render_as_string(hide_password=False)
