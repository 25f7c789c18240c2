"""Where the broker's address came from, shown when it does not answer: a wrong one is often left over from another day."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

ADDRESS_ORIGIN = "logbus.address_origin"  # where the context of a command keeps it
UP_ENVIRONMENT = ".logbus/up/env"
ANOTHER = (
    f"`logbus up` starts a broker here, `source {UP_ENVIRONMENT}` in the directory where it runs sets its address, and "
    "--bootstrap-server HOST:PORT names any other"
)


def note_origin(
    context: click.Context, bootstrap: str, source: ParameterSource | None, client_config: Path | None = None
) -> None:
    """`client_config`: the file, if it names the address itself."""
    context.meta[ADDRESS_ORIGIN] = address_origin(bootstrap, source, client_config)


def address_origin(bootstrap: str, source: ParameterSource | None, client_config: Path | None = None) -> str:
    """Where the address came from, and how to name another."""
    if client_config is not None:
        return f"the address is from {client_config}, which takes precedence over --bootstrap-server and LOGBUS_BOOTSTRAP_SERVER"
    if source is ParameterSource.COMMANDLINE:
        return f"{bootstrap} is from the command line: {ANOTHER}"
    if source is ParameterSource.ENVIRONMENT:
        return f"{bootstrap} is from the environment (LOGBUS_BOOTSTRAP_SERVER): {ANOTHER}"
    return f"{bootstrap} is the default, as neither --bootstrap-server nor LOGBUS_BOOTSTRAP_SERVER names a broker: {ANOTHER}"
