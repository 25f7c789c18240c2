"""`logbus up`: broker, schema registry and PostgreSQL on this machine until Ctrl-C, and a file with their addresses for
other terminals.

For trials and development: what is stored stays in one directory, and the next start finds it. The file exists exactly while both
answer; it holds addresses and no password (PostgreSQL listens on its owner's unix socket; with --secure it names the file of the
brokers' administrator).

`logbus broker` hands the terminal over to `python -m logbus_broker`: the pipeline reaches the broker over the wire only, and
imports nothing of it.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from sqlalchemy import make_url

from logbus import errors
from logbus.cli import endings, local_airflow, options, output
from logbus.cli.secure_home import USERS, SecureHome
from logbus.cli.stack import MEMORABLE_PORTS, LocalStack, as_typed, project_directory, stay_up
from logbus.loads.embedded import binary

ENVIRONMENT_FILE = "env"


@click.command("up")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".logbus/up"),
    show_default=True,
    help="Where everything is kept.",
)
@click.option(
    "--dags",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Start Airflow too, with the DAGs of this directory.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="How many; several form a cluster with a ZooKeeper, and keep each record three times.",
)
@click.option(
    "--secure",
    "is_secure",
    is_flag=True,
    help="Encrypt every connection to the broker and let only users in: TLS and SCRAM, with certificates that renew themselves, "
    "and users with random passwords and ACLs. A home stays secure once it is.",
)
@click.option(
    "--advertised-host",
    metavar="HOST",
    help="With --secure: the name or address by which other machines reach this one. The broker then listens on all addresses.",
)
@options.json_option
def command(home: Path, dags: Path | None, brokers: int, is_secure: bool, advertised_host: str | None, as_json: bool) -> None:
    """Run the broker, a schema registry and a PostgreSQL on this machine until Ctrl-C, and Airflow too if --dags is given.

    Other terminals get the addresses with `source .logbus/up/env`, and with --secure the administrator's file, so that all
    commands work there. `logbus connect --for java --user shipper` prints what another machine needs. With -o json the addresses
    are one object on standard output as soon as everything answers, and all else goes to standard error.
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json, markup=False, emoji=False)
    project = project_directory() if dags else home
    advertised_host = advertised_host and advertised_host.strip("[]")
    security = SecureHome(home.absolute(), advertised_host=advertised_host)
    if advertised_host and ":" in advertised_host and not is_address(advertised_host):
        raise click.UsageError(f"--advertised-host is a name or an address, without a port, not {advertised_host}")
    if advertised_host and not (is_secure or security.is_there):
        raise click.UsageError("--advertised-host lets other machines in: add --secure, so that they need a password")
    try:
        stack_here = LocalStack(
            home,
            project=project,
            environment=os.environ,
            ports=MEMORABLE_PORTS,
            dags=dags,
            brokers=brokers,
            security=security if is_secure or security.is_there else None,
            with_registry=True,
            say=lambda text: tell(console, text),
        )
        with endings.raising(), stack_here as stack:
            stack.start_storage()
            if dags is not None:
                console.print("Starting Airflow: half a minute, longer the first time ...")
                stack.start_airflow()
            with environment_file(home / ENVIRONMENT_FILE, addresses(stack)) as path:
                if as_json:
                    output.show_json(summary(stack, path, with_airflow=dags is not None))
                else:
                    show(console, stack, path, with_airflow=dags is not None)
                stay_up(stack, console)
    except KeyboardInterrupt:
        console.print("Stopped before everything was up.")


def is_address(text: str) -> bool:
    """Of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def show(console: Console, stack: LocalStack, path: Path, *, with_airflow: bool) -> None:
    """Where everything is, and what to type next."""
    tell(console, f"broker      {stack.bootstrap_servers}{' (TLS and a password)' if stack.client_file else ''}")
    if stack.zookeeper_connect is not None:
        tell(console, f"ZooKeeper   {stack.zookeeper_connect}")
    if stack.registry is not None:
        tell(console, f"registry    {stack.registry.url}")
    tell(console, f"warehouse   {stack.warehouse_url}")
    if with_airflow:
        airflow = stack.airflow.settings
        tell(console, f"Airflow     {airflow.url}, user {local_airflow.USER}, password {airflow.password}")
    if stack.client_file is not None:
        files = f"{as_typed(stack.client_file.parent)}/NAME.properties"
        tell(console, f"users       {', '.join(USERS)}: {files}, or logbus connect --for")
    tell(console, f"In other terminals:  source {as_typed(path.absolute())}")
    for note in stack.notes():
        tell(console, f"note: {note}: source that file there again", style="yellow")


def tell(console: Console, text: str, style: str | None = None) -> None:
    """A line that may quote a path, or the name of somebody's process."""
    console.print(output.safe(text), style=style)


def summary(stack: LocalStack, path: Path, *, with_airflow: bool) -> dict[str, Any]:
    """As JSON-ready values."""
    airflow = stack.airflow.settings if with_airflow else None
    return {
        "bootstrap_servers": stack.bootstrap_servers,
        "zookeeper_connect": stack.zookeeper_connect,
        "client_config": stack.client_file and str(stack.client_file),
        "registry_url": stack.registry and stack.registry.url,
        "warehouse_url": stack.warehouse_url,
        "airflow_url": airflow and airflow.url,
        "airflow_user": airflow and local_airflow.USER,
        "airflow_password": airflow and airflow.password,
        "environment_file": str(path.absolute()),
        "notes": stack.notes(),
    }


@contextmanager
def environment_file(path: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """The file for a shell; it exists while its addresses are valid. On its PATH our commands come first, PostgreSQL's last."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    ours, psql = (shlex.quote(str(folder)) for folder in (Path(sys.executable).parent, binary("psql").parent))
    path.write_text("\n".join([*lines, f'export PATH={ours}:"$PATH":{psql}', ""]))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def addresses(stack: LocalStack) -> Mapping[str, str]:
    """The variables that our commands and PostgreSQL's own (psql) read."""
    url = make_url(stack.warehouse_url)
    return {
        "LOGBUS_WAREHOUSE_URL": stack.warehouse_url,
        "LOGBUS_BOOTSTRAP_SERVER": stack.bootstrap_servers,
        **({} if stack.registry is None else {"LOGBUS_REGISTRY_URL": stack.registry.url}),
        **({} if stack.client_file is None else {"LOGBUS_CLIENT_CONFIG": str(stack.client_file)}),
        "PGHOST": str(url.query["host"]),
        "PGUSER": str(url.username),
        "PGDATABASE": str(url.database),
    }


@click.command("broker", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker_command(arguments: tuple[str, ...]) -> None:
    """Run the log broker; all arguments go to `python -m logbus_broker`."""
    errors.require("logbus_broker")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "logbus_broker", *arguments])
