"""`logbus registry`: a schema registry on a Kafka cluster, and a look at what it holds.

`serve` is the server; `ls` and `show` read the topic itself, so they need no server, and work on what Confluent's has written.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logbus import errors
from logbus.cli import endings, options, output
from logbus.kafka.client import Client

if TYPE_CHECKING:
    from logbus.web.registry_state import RegistryState
    from logbus.web.registry_store import RegistryStore

PORT_DEFAULT = 8081  # Confluent's
NEEDED = ("avro", "grpc_tools", "jsonschema_rs", "starlette", "uvicorn")
LOOK_SECONDS = 5.0  # how often: a renewed certificate, void records of a registry that was replaced
BACKLOG = 128
# What a website cannot make its own; of an address of IPv6 older versions of the framework compare the bracket alone.
NAMES_OF_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "[")


@click.group("registry")
def command() -> None:
    """Schemas of records: serve a registry that Confluent's clients use, list what one holds."""


def topic_option(function: options.Function) -> options.Function:
    return click.option("--topic", default="_schemas", show_default=True, metavar="NAME", help="Where schemas are kept.")(
        function
    )


@command.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT_DEFAULT, show_default=True, help="Port; 0 for any free one.")
@click.option("--login", "with_login", is_flag=True, help="Let in the cluster's users, with what they may do on the topic.")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Speak TLS, with this PEM file of a key and its certificate; read again when it has changed.",
)
@click.option("--allow-unauthenticated", is_flag=True, help="Listen where others can connect without --login or --certificate.")
@topic_option
@options.with_broker
def serve(
    host: str,
    port: int,
    with_login: bool,
    certificate: Path | None,
    allow_unauthenticated: bool,
    topic: str,
    config: Mapping[str, Any],
) -> None:
    """Serve the schemas in a topic of a Kafka cluster by the REST interface of Confluent's registry, until SIGTERM or Ctrl-C.

    The topic is made if there is none. Several may serve one topic: the one that wrote last writes, the others answer look-ups.
    """
    for package in NEEDED:
        errors.require(package)
    import uvicorn

    from logbus.web.registry import SchemaRegistry
    from logbus.web.registry_app import make_app
    from logbus.web.registry_login import RegistryLogins
    from logbus.web.registry_store import RegistryStore

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("logbus.registry").setLevel(logging.INFO)
    listener = listening(host, port)
    address = ip_address(listener.getsockname()[0])
    if not address.is_loopback and not (with_login and certificate) and not allow_unauthenticated:
        raise errors.UserError(
            f"--host {host} can be reached by others: add --login and --certificate FILE, so that they need a password and it is "
            "encrypted, or --allow-unauthenticated if everyone who can connect may read, register and delete schemas"
        )
    ending = threading.Event()
    endings.set_at_signals(ending)
    store = RegistryStore(Client.for_command(config), topic=topic, on_failure=ending.set)
    logins = RegistryLogins(config, topic) if with_login else None
    hosts = ["*"] if certificate or not address.is_loopback else [*NAMES_OF_LOOPBACK, host]
    settings = uvicorn.Config(
        make_app(SchemaRegistry(store), logins=logins, hosts=hosts),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=certificate,
    )
    server = uvicorn.Server(settings)
    try:
        store.open()
        settings.load()
        # On a thread of its own: on the main one it would handle the signals itself, and end as if it had been killed.
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="registry-server", daemon=True)
        serving.start()
        scheme = "https" if certificate else "http"
        shown = f"[{address}]" if address.version == 6 else address
        output.echo(f"serving {scheme}://{shown}:{listener.getsockname()[1]}")
        keep(store, settings.ssl, certificate, ending)
        server.should_exit = True
        serving.join()
    finally:
        store.close()
    if store.failure is not None:
        raise errors.BrokerUnavailable(f"the registry has ended: {store.failure}")


def listening(host: str, port: int) -> socket.socket:
    """`UserError` where the port is taken, or the address is not of this machine."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG, reuse_port=False
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise errors.UserError(
                f"port {port} of {host} is in use: stop what listens there, or choose another with --port"
            ) from None
        raise errors.UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None


def keep(store: RegistryStore, tls: ssl.SSLContext | None, certificate: Path | None, ending: threading.Event) -> None:
    """Until the end: serves a certificate that has been renewed, repairs what a replaced registry has written since."""
    served = None if certificate is None else certificate.stat().st_mtime_ns
    while not ending.wait(LOOK_SECONDS):
        try:
            if tls is not None and certificate is not None and (changed := certificate.stat().st_mtime_ns) != served:
                tls.load_cert_chain(certificate, certificate)
                served = changed
            store.repair()
        except (errors.LogbusError, OSError) as error:  # a file that is being written, a broker that is away
            logging.getLogger("logbus.registry").warning("%s; tried again", error)


@contextmanager
def reading(config: Mapping[str, Any], topic: str) -> Iterator[RegistryState]:
    """What the topic holds now."""
    from logbus.web.registry_store import RegistryStore

    store = RegistryStore(Client.for_command(config), topic=topic)
    store.open(is_made=False)
    try:
        with store.reading() as state:
            yield state
    finally:
        store.close()


@command.command("ls")
@click.option("--deleted", "with_deleted", is_flag=True, help="Softly deleted ones too.")
@topic_option
@options.with_broker
@options.json_option
def list_subjects(with_deleted: bool, topic: str, config: Mapping[str, Any], as_json: bool) -> None:
    """List subjects with the latest version of each."""
    with reading(config, topic) as state:
        latest = [
            (state.versions(name, with_deleted=with_deleted), state.level(name))
            for name in state.subjects(with_deleted=with_deleted)
        ]
    if as_json:
        output.show_json([{**versions[-1].summary(), "compatibility": level} for versions, level in latest])
        return
    table = output.Table("subject", "type", "compatibility", "versions", "latest", "id", numbers_from=3)
    for versions, level in latest:
        last = versions[-1]
        table.add_row(last.subject, last.schema.kind.value, level, str(len(versions)), str(last.version), str(last.schema_id))
    output.show(table)


@command.command("show")
@click.argument("subject")
@click.option("--version", "number", type=click.IntRange(1), help="By default the latest.")
@topic_option
@options.with_broker
@options.json_option
def show_schema(subject: str, number: int | None, topic: str, config: Mapping[str, Any], as_json: bool) -> None:
    """Print the schema of a subject, as it is stored."""
    with reading(config, topic) as state:
        versions = state.versions(subject, with_deleted=True)
    chosen = [version for version in versions if number in (None, version.version) and (number or not version.is_deleted)]
    if not chosen:
        what = f"version {number} of subject {subject}" if number else f"subject {subject}"
        raise errors.UserError(f"there is no {what} in {topic}: logbus registry ls")
    if as_json:
        output.show_json(chosen[-1].summary())
    else:
        output.write_raw(f"{chosen[-1].schema.text}\n")
