"""`logbus connect`: asks how to reach a Kafka cluster, tries it, and writes down what works, for commands and for Airflow; or
prints what another program needs to connect, for somebody to paste there.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from logbus import errors, formatting
from logbus.cli import options, output
from logbus.kafka import users
from logbus.kafka.client import Client
from logbus.kafka.client_config import (
    OAUTHBEARER,
    inlined,
    of_brokers,
    of_the_jvm,
    of_user,
    properties,
    read_client_config,
    write,
)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", OAUTHBEARER)
PASSWORD_VARIABLE = "LOGBUS_KAFKA_PASSWORD"  # a command line is for everybody to read
TOPICS_MAX = 20  # whose rights are looked at
COLUMNS = {"Read": "read", "DescribeConfigs": "settings", "Write": "write", "Delete": "delete"}  # by operation
ANSWERS = {True: "yes", False: "no", None: "unknown"}


def for_kcat(settings: Mapping[str, Any], conn_id: str) -> str:
    lines = [f"{name}={value}" for name, value in of_brokers(settings).items()]
    return "\n".join(["# kcat -F this-file -L; certificates are files of the machine where this was printed", *lines])


def for_java(settings: Mapping[str, Any], conn_id: str) -> str:
    what_for = "# --command-config of Kafka's tools, the properties of a JVM client, --client-config of logbus"
    return f"{what_for}\n{properties(inlined(settings))}".rstrip()


def for_python(settings: Mapping[str, Any], conn_id: str) -> str:
    config = inlined(of_brokers(settings))
    return f"# confluent_kafka.Producer(config)\nconfig = {literal(config)}"


def for_spark(settings: Mapping[str, Any], conn_id: str) -> str:
    jvm = of_the_jvm(inlined(of_brokers(settings)))
    what_for = '# spark.readStream.format("kafka").options(**options).option("subscribe", "TOPIC").load()'
    return f"{what_for}\noptions = {literal({f'kafka.{name}': value for name, value in jvm.items()})}"


def for_airflow(settings: Mapping[str, Any], conn_id: str) -> str:
    """What `airflow connections import FILE.json` takes."""
    extra = {name: str(value) for name, value in inlined(settings).items()}
    return json.dumps({conn_id: {"conn_type": "kafka", "extra": extra}}, indent=4)


def literal(settings: Mapping[str, Any]) -> str:
    """As Python writes a dict."""
    return "\n".join(["{", *(f"    {name!r}: {str(value)!r}," for name, value in settings.items()), "}"])


FORMS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "kcat": for_kcat,
    "java": for_java,
    "python": for_python,
    "spark": for_spark,
    "airflow": for_airflow,
}


@click.command("connect")
@click.option("-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT", help="One or more servers, with commas.")
@click.option("--security-protocol", type=click.Choice(PROTOCOLS, case_sensitive=False), help="What the listener speaks.")
@click.option("--mechanism", type=click.Choice(MECHANISMS, case_sensitive=False), help="Of SASL.")
@click.option("--user", metavar="NAME", help=f"Of SASL; its password is asked for, or in {PASSWORD_VARIABLE}.")
@click.option("--ca", metavar="FILE", help='PEM file of the authority that signed the brokers; "" for those of this machine.')
@click.option("--certificate", metavar="FILE", help='PEM file of this client\'s certificate (mTLS); "" for none.')
@click.option("--key", metavar="FILE", help="PEM file of its key.")
@click.option(
    "-X", "--client-option", "others", multiple=True, type=options.ClientSetting(), help="A setting more; may be repeated."
)
@click.option(
    "--write",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("client.properties"),
    show_default=True,
    help="The file to write, for --client-config and for Kafka's own tools; readable by its owner only.",
)
@click.option("--replace", is_flag=True, help="Also if it exists.")
@click.option("--conn-id", default="kafka_default", show_default=True, help="The name of Airflow's connection.")
@click.option("--show-password", is_flag=True, help="Show it in Airflow's connection.")
@click.option("--no-input", is_flag=True, help="Ask nothing: what is not given is an error, or the default.")
@click.option(
    "--for",
    "form",
    type=click.Choice(list(FORMS)),
    help="Write nothing, but print what this program needs, to paste it there. THE PASSWORD IS IN IT: a terminal keeps what it "
    "has shown, so direct it to a file or into a pipe.",
)
@click.option(
    "--advertised-listener",
    metavar="HOST:PORT",
    help="With --for: the address to print, where the other program reaches the brokers by another one than is tried here.",
)
@options.client_config_option
def command(
    path: Path,
    replace: bool,
    conn_id: str,
    show_password: bool,
    no_input: bool,
    form: str | None,
    advertised_listener: str | None,
    client_config: Path | None,
    **given: Any,
) -> None:
    """Connect to a Kafka cluster: try the settings, show what they allow, write them down.

    Nothing is written unless the cluster has answered. With --for the settings are those of --client-config, if there is one;
    --user names another user than its own: his NAME.properties beside that file is taken, as `logbus up --secure` makes them, or
    the password is asked for.
    """
    if form is not None:
        config = asked(given, no_input) if client_config is None else of_file(client_config, given, no_input)
        try_out(config)
        printed = config | ({"bootstrap.servers": advertised_listener} if advertised_listener else {})
        output.write_raw(f"{FORMS[form](printed, conn_id)}\n")
        return
    if advertised_listener:
        raise click.UsageError("--advertised-listener goes with --for: what is written down here is what was tried")
    if path.exists() and not replace:
        raise errors.UserError(f"{path} exists already: --replace overwrites it, --write FILE names another one")
    config = asked(given, no_input)
    show_rights(try_out(config))
    write(path, config)
    output.echo(f"export LOGBUS_CLIENT_CONFIG={shlex.quote(str(path.resolve()))}")
    extra = config if show_password or "sasl.password" not in config else {**config, "sasl.password": "***"}
    output.echo(f"airflow connections add {shlex.quote(conn_id)} --conn-type kafka --conn-extra {shlex.quote(json.dumps(extra))}")
    if extra is not config:
        output.echo_err("note: the password is left out of the connection; --show-password shows it")


def try_out(config: Mapping[str, Any]) -> Client:
    """The client that has connected with these settings."""
    client = Client.for_command(config)
    described = client.ask(client.ask_cluster)[""]
    output.echo_err(f"connected to cluster {described.cluster_id}: {formatting.many(len(described.nodes), 'broker')}")
    return client


def of_file(path: Path, given: Mapping[str, Any], no_input: bool) -> dict[str, Any]:
    """The file's settings; for another user and another address, if they are given."""
    config, user = read_client_config(path), given["user"]
    if user not in (None, config.get("sasl.username")):
        own = path.parent / f"{user}.properties"
        is_beside = own.parent == path.parent and own.is_file()
        config = read_client_config(own) if is_beside else of_user(config, user, password(no_input))
    return config | ({"bootstrap.servers": given["bootstrap"]} if given["bootstrap"] else {}) | dict(given["others"])


def asked(given: Mapping[str, Any], no_input: bool) -> dict[str, Any]:
    """The settings, in librdkafka's names: what is given, and the answers to what is not."""

    def ask(name: str, question: str, default: str | None = None, **prompt: Any) -> str:
        if given[name] is not None:
            return str(given[name])
        if no_input:
            if default is None:
                raise click.UsageError(
                    f"--{name.replace('bootstrap', 'bootstrap-server')} is needed: nothing is asked with --no-input"
                )
            return default
        answer: str = click.prompt(question, default=default, err=True, show_default=bool(default), **prompt)
        return answer

    protocol_choice, mechanism_choice = (click.Choice(choices, case_sensitive=False) for choices in (PROTOCOLS, MECHANISMS))
    config = {"bootstrap.servers": ask("bootstrap", "Bootstrap servers", "127.0.0.1:9092" if not no_input else None)}
    protocol = ask("security_protocol", "Security protocol", PROTOCOLS[0], type=protocol_choice).upper()
    config["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        config["sasl.mechanism"] = ask("mechanism", "SASL mechanism", MECHANISMS[0], type=mechanism_choice).upper()
        if config["sasl.mechanism"] != OAUTHBEARER:
            config["sasl.username"] = ask("user", "User")
            config["sasl.password"] = password(no_input)
    if protocol.endswith("SSL"):
        files = {"ssl.ca.location": ask("ca", "File of the certificate authority (empty: those of this machine)", "")}
        if protocol == "SSL":
            files["ssl.certificate.location"] = ask("certificate", "File of this client's certificate (empty: none)", "")
            if files["ssl.certificate.location"]:
                files["ssl.key.location"] = ask("key", "File of its key", files["ssl.certificate.location"])
        config |= {name: str(Path(file).expanduser().resolve()) for name, file in files.items() if file}
    return config | dict(given["others"])


def password(no_input: bool) -> str:
    if (of_environment := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return of_environment
    if no_input:
        raise click.UsageError(f"{PASSWORD_VARIABLE} is needed, in the environment: nothing is asked with --no-input")
    answer: str = click.prompt("Password", hide_input=True, err=True)
    return answer


def show_rights(client: Client) -> None:
    """What this user may do with the topics that it sees, the groups that it sees, and the cluster."""
    resources = users.read_rights(client).resources
    of_topics = [resource for resource in resources if resource.kind is users.ResourceKind.TOPIC]
    if of_topics:
        table = output.Table("topic", *COLUMNS.values())
        for resource in of_topics[:TOPICS_MAX]:
            table.add_row(resource.name, *(ANSWERS[resource.may(operation)] for operation in COLUMNS))
        output.show(table)
        if len(of_topics) > TOPICS_MAX:
            output.echo_err(f"and {formatting.many(len(of_topics) - TOPICS_MAX, 'more topic')}")
    else:
        output.echo_err("note: this user sees no topic: there is none, or it lacks Describe on them (docs/your-kafka.md)")
    others = output.Table("on", "may", "may not")
    for resource in resources:
        if resource.kind is not users.ResourceKind.TOPIC:
            answers = {operation: resource.may(operation) for operation in users.OPERATIONS[resource.kind]}
            columns = [", ".join(name for name, answer in answers.items() if answer is expected) for expected in (True, False)]
            others.add_row(f"{resource.kind} {resource.name}".strip(), *columns)
    output.show(others)
