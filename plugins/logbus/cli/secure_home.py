"""What secures the brokers of one home: an authority that signs what they show, so that clients know whom they tell their
password, users with random passwords, what each of them may do. `logbus up --secure` makes it for the brokers that it runs,
`logbus security` for one that something else does.

    DIRECTORY/ca.pem        the authority's certificate: what clients trust (ssl.ca.location). No secret
    DIRECTORY/ca.key        its key, which signs nothing but the next files
    DIRECTORY/server.pem    key and certificate of the brokers (ssl.keystore.location)
    DIRECTORY/registry.pem  key and certificate of a schema registry (logbus registry serve --certificate)

The keys are ECDSA on P-256, whose handshake costs a broker half of RSA's, and readable by their owner only. A server's
certificate is valid for three months and renewed when a third of that is left, or when the server gets another name: it reads a
changed file while it runs. The authority stays: with another one every client would need another file.

    HOME/security/ca.pem ..                the authority, the brokers' certificate and the registry's, as above
    HOME/security/users                    NAME=PASSWORD in each line, which the brokers read at their start (logbus.users.file)
    HOME/security/zookeeper                who brokers are for their ZooKeeper, in the same form, if there are several
    HOME/security/clients/NAME.properties  what a client needs to connect as that user: for --client-config and Kafka's own tools

All of it is made at the first secure start, readable by its owner only, and stays: a home that has been secured is started in no
other way. The ACLs are made once, while the cluster has none, so that what was changed later by `logbus acl` stays changed; a
user that this version has and the home has not is added, with its ACLs.

Where each program runs in a container of its own, it gets a folder with what it needs and nothing else:

    SHARED/broker/                 broker.properties, and what that names: all but the authority's key and the clients' files;
                                   cluster.properties for brokers of a cluster
    SHARED/NAME/client.properties  what that user needs, the authority's certificate in it
    SHARED/registry/               the same, and registry.pem with ca.pem: it is a server, too
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from logbus import atomic_write, errors, model
from logbus.cli import endings, options, output
from logbus.kafka import acls, client_config, users
from logbus.kafka.client import Client

AUTHORITY_VALID = timedelta(days=3650)
SERVER_VALID = timedelta(days=90)
RENEWED_BEFORE = SERVER_VALID / 3  # its end
CLOCKS_APART = timedelta(hours=1)  # of the machines that check it
USAGES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
NO_ENCRYPTION = serialization.NoEncryption()
PEM = serialization.Encoding.PEM


class Authority:
    """Made at the first use. UserError where its files cannot be used."""

    def __init__(self, directory: Path, *, clock: Callable[[], datetime] = model.utc_now) -> None:
        self.certificate_path = directory / "ca.pem"
        self._key_path = directory / "ca.key"
        self._clock = clock
        self._renewals: dict[Path, datetime] = {}  # when it is time; not known before the file was looked at
        if not self.certificate_path.exists():
            self._make()
        try:
            key = serialization.load_pem_private_key(self._key_path.read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise errors.UserError(
                f"the certificate authority in {directory} cannot be used ({error}): restore it, or remove the folder, and give "
                "every client its file again"
            ) from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def keep_server_certificate(self, path: Path, names: Collection[str]) -> None:
        """Makes or renews a server's certificate if need be. `names`: host names and addresses by which clients reach it."""
        if path in self._renewals and self._clock() < self._renewals[path]:
            return
        ends_at = self._end_of_current(path, names)
        if ends_at is None or self._clock() >= ends_at - RENEWED_BEFORE:
            ends_at = self._issue(path, names)
        self._renewals[path] = ends_at - RENEWED_BEFORE

    def _end_of_current(self, path: Path, names: Collection[str]) -> datetime | None:
        """None if there is none, or it is another authority's or for other names."""
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # whatever is wrong with it, another one is made
            return None
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificate.not_valid_after_utc if set(map(general_name, names)) <= set(alternatives) else None

    def _make(self) -> None:
        key, name = ec.generate_private_key(ec.SECP256R1()), common_name("logbus")
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        self.certificate_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate = (
            self._builder(name, name, key, AUTHORITY_VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(own, critical=False)
            .sign(key, hashes.SHA256())
        )
        atomic_write.replace_atomically(self._key_path, private_pem(key), mode=0o600)
        atomic_write.replace_atomically(self.certificate_path, certificate.public_bytes(PEM), mode=0o644)

    def _issue(self, path: Path, names: Collection[str]) -> datetime:
        """When the new one ends."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(common_name(f"logbus {path.stem}"), self._certificate.subject, key, SERVER_VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage("digital_signature"), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
            )
            .add_extension(alternatives, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        # One file, replaced at once: a server never reads a key beside another key's certificate.
        atomic_write.replace_atomically(path, private_pem(key) + certificate.public_bytes(PEM), mode=0o600)
        return certificate.not_valid_after_utc

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
    ) -> x509.CertificateBuilder:
        now = self._clock()
        return x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - CLOCKS_APART,
            not_valid_after=now + valid,
        )


def usage(*purposes: str) -> x509.KeyUsage:
    names = (*USAGES, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: name in purposes for name in names})


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def general_name(name: str) -> x509.GeneralName:
    """An address, or a host's name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_ENCRYPTION)


# What secures the brokers of one home: an authority and a certificate, users with random passwords, what each of them may
# do. `logbus up --secure` makes it for the brokers that it runs, `logbus security` for one that something else does.


PROTOCOL, MECHANISM = "SASL_SSL", "SCRAM-SHA-512"
ADMIN, AIRFLOW, SPARK, EXPORTER, SHIPPER, REGISTRY = "admin", "airflow", "spark", "exporter", "shipper", "registry"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

# What each may do, to everything of a kind, or to the one topic of TOPICS_OF. `admin` may do everything anyway, and the brokers
# log in to each other as it does.
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
RIGHTS: Mapping[str, Mapping[ResourceType, str]] = {
    AIRFLOW: {  # what operators and pages do: docs/your-kafka.md
        TOPIC: "READ WRITE CREATE DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
        GROUP: "READ DELETE DESCRIBE",
        CLUSTER: "DESCRIBE",
    },
    SHIPPER: {TOPIC: "WRITE CREATE READ DESCRIBE"},  # it looks in the topic for the last line that it sent
    SPARK: {TOPIC: "READ DESCRIBE", GROUP: "READ"},  # programs of one's own: the connector joins groups of its own names
    EXPORTER: {TOPIC: "DESCRIBE DESCRIBE_CONFIGS", GROUP: "DESCRIBE", CLUSTER: "DESCRIBE"},
    REGISTRY: {TOPIC: "READ WRITE CREATE DESCRIBE DESCRIBE_CONFIGS"},
}
TOPICS_OF: Mapping[str, str] = {REGISTRY: "_schemas"}
USERS = (ADMIN, *RIGHTS)
BROKERS_FILES = ("ca.pem", "server.pem", "users", "zookeeper")
REGISTRYS_FILES = ("ca.pem", "registry.pem")
LOOK_SECONDS = 5.0  # how often a shared folder is compared: a password that was changed is there soon


class SecureHome:
    """`advertised_host`: the name or address by which other machines reach this one; without it, only this machine does. `names`
    are others that the brokers' certificate has."""

    def __init__(self, home: Path, *, advertised_host: str | None = None, names: Sequence[str] = ()) -> None:
        self.advertised_host = advertised_host
        self._names = names
        self._directory = home / "security"
        self._clients = self._directory / "clients"
        self._users_path = self._directory / "users"
        self._zookeeper_path = self._directory / "zookeeper"
        self._authority: Authority | None = None
        self._added_users: list[str] = []

    @property
    def is_there(self) -> bool:
        """Whether it has been made."""
        return self._users_path.exists()

    def prepare(self, bootstrap_servers: str) -> None:
        """Makes what is missing; the clients' files get this address."""
        errors.require("cryptography")
        self._authority = Authority(self._directory)
        self.renew()
        add_passwords(self._zookeeper_path, ["brokers"])
        self._added_users = add_passwords(self._users_path, USERS)
        self._clients.mkdir(mode=0o700, exist_ok=True)
        for user, password in passwords_of(self._users_path).items():
            path = self.client_file(user)
            if path.exists():  # `logbus user passwd --write` may have changed it since
                password = client_config.read_client_config(path)["sasl.password"]
            settings = {
                "bootstrap.servers": bootstrap_servers,
                "security.protocol": PROTOCOL,
                "sasl.mechanism": MECHANISM,
                "sasl.username": user,
                "sasl.password": password,
                "ssl.ca.location": str(self._directory / "ca.pem"),
            }
            client_config.write(path, settings)

    def renew(self) -> None:
        """Renews the servers' certificates, if it is time: they read the new one while they run. Costs nothing otherwise."""
        if self._authority is not None:
            names = (*LOCAL_NAMES, socket.gethostname(), *filter(None, [self.advertised_host]), *self._names)
            self._authority.keep_server_certificate(self._directory / "server.pem", dict.fromkeys(names))
            self._authority.keep_server_certificate(self.registry_certificate_path, dict.fromkeys((*names, REGISTRY)))

    @property
    def every_interface(self) -> str:
        """The address to listen on for other machines: `::` is IPv4 as well, where there is IPv6."""
        return "::" if ":" in (self.advertised_host or "") else "0.0.0.0"

    @property
    def registry_certificate_path(self) -> Path:
        """Key and certificate of the schema registry."""
        return self._directory / "registry.pem"

    def client_file(self, user: str) -> Path:
        return self._clients / f"{user}.properties"

    def client_config(self, user: str) -> dict[str, Any]:
        """In librdkafka's names."""
        return client_config.read_client_config(self.client_file(user))

    def broker_settings(self, port: int, host: str) -> dict[str, str]:
        """What a broker there is started with. Other machines are let in by listening on all addresses."""
        listens_on = host if self.advertised_host is None else bracketed(self.every_interface)
        return {
            "listeners": f"{PROTOCOL}://{listens_on}:{port}",
            "advertised.listeners": f"{PROTOCOL}://{bracketed(self.advertised_host or host)}:{port}",
            **login_settings(self._directory),
        }

    def inter_broker_settings(self) -> dict[str, str]:
        """For the brokers of a cluster."""
        return inter_broker_settings(self._directory)

    def grant(self) -> None:
        """The users' ACLs, in the first cluster that starts here; those of a user that was added, in any."""
        if not give_rights(self.client_config(ADMIN)) and self._added_users:
            acls.Acls(Client.for_command(self.client_config(ADMIN))).add(rules_of(self._added_users))

    def share(self, directory: Path) -> None:
        """Keeps the folders for programs in containers up to date; the broker's is complete last."""
        for user in USERS:
            settings = client_config.inlined(self.client_config(user))
            keep_file(directory / user / "client.properties", client_config.properties(settings).encode())
        broker = directory / "broker"
        for folder, names in ((directory / REGISTRY, REGISTRYS_FILES), (broker, BROKERS_FILES)):
            for name in names:
                keep_file(folder / name, (self._directory / name).read_bytes())
        alone = login_settings(broker)
        for name, settings in {"cluster": alone | inter_broker_settings(broker), "broker": alone}.items():
            keep_file(broker / f"{name}.properties", "".join(f"{key}={value}\n" for key, value in settings.items()).encode())


def bracketed(host: str) -> str:
    """As it is written before a port: an IPv6 address has colons of its own."""
    return f"[{host}]" if ":" in host else host


def passwords_of(path: Path) -> dict[str, str]:
    """By user; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {user: password for user, _, password in (line.partition("=") for line in lines)}


def add_passwords(path: Path, names: Sequence[str]) -> list[str]:
    """The users of these who had none, and have one now."""
    passwords = passwords_of(path)
    added = [name for name in names if name not in passwords]
    if added:
        passwords |= {name: users.random_password() for name in added}
        lines = "".join(f"{name}={password}\n" for name, password in passwords.items())
        atomic_write.replace_atomically(path, lines.encode(), mode=0o600)
    return added


def keep_file(path: Path, content: bytes) -> None:
    """The file with this content, for its owner only; left alone if it has it already: a broker reads a file that has changed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        atomic_write.replace_atomically(path, content, mode=0o600)


def login_settings(directory: Path) -> dict[str, str]:
    """Who may log in to a broker, and what it shows them, by the files of that directory."""
    return {
        "sasl.enabled.mechanisms": ",".join(users.MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "logbus.users.file": str(directory / "users"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
    }


def inter_broker_settings(directory: Path) -> dict[str, str]:
    """How the brokers of a cluster log in to each other, and keep what is in their ZooKeeper to themselves."""
    return {
        "inter.broker.listener.name": PROTOCOL,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "logbus.inter.broker.user": ADMIN,
        "logbus.zookeeper.auth.file": str(directory / "zookeeper"),
        "zookeeper.set.acl": "true",
    }


def give_rights(administrator: Mapping[str, Any]) -> bool:
    """Makes the users' ACLs where the cluster has none; returns whether it had none."""
    rules = acls.Acls(Client.for_command(administrator))
    if rules.matching():
        return False
    rules.add(rules_of(RIGHTS))
    return True


def rules_of(names: Iterable[str]) -> list[AclBinding]:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return [
        AclBinding(
            kind,
            acls.CLUSTER_NAME if kind is CLUSTER else TOPICS_OF.get(user, acls.ANY_NAME),
            literal,
            f"User:{user}",
            acls.ANY_NAME,
            AclOperation[word],
            allow,
        )
        for user in names
        for kind, words in RIGHTS.get(user, {}).items()
        for word in words.split()
    ]


@click.group("security")
def command() -> None:
    """Secure a broker that `logbus up` does not run, in containers for example: TLS, users and ACLs.

    `keep` makes the files that the broker and its clients need; `grant`, once the broker runs, gives the users their rights.
    """


@command.command("keep")
@click.option("--home", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where the authority is kept.")
@click.option(
    "--share",
    "shared",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the folders for the broker and for each user are, such as volumes of their containers.",
)
@click.option("--name", "names", multiple=True, metavar="HOST", help="A name of the broker for its certificate; may be repeated.")
@click.option("-b", "--bootstrap-server", "bootstrap", required=True, metavar="HOST:PORT", help="Where clients reach the broker.")
def keep(home: Path, shared: Path, names: tuple[str, ...], bootstrap: str) -> None:
    """Make certificates and users where there are none, and renew the certificate in time, until SIGTERM or Ctrl-C.

    The broker is started with `--config SHARED/broker/broker.properties` and its listeners; clients with `--client-config
    SHARED/NAME/client.properties`. A broker reads a renewed certificate while it runs.
    """
    stop = threading.Event()
    endings.set_at_signals(stop)
    home_here = SecureHome(home.absolute(), names=names)
    home_here.prepare(bootstrap)
    home_here.share(shared.absolute())
    output.echo(f"shared: {shared}: broker, {', '.join(USERS)}")
    while not stop.wait(LOOK_SECONDS):
        home_here.renew()
        home_here.share(shared.absolute())


@command.command("grant")
@options.with_broker
def grant(config: Mapping[str, Any]) -> None:
    """Give the users that `keep` has made their ACLs, as the administrator, unless the cluster has any ACL already."""
    granted = give_rights(config)
    output.echo(f"granted: {', '.join(RIGHTS)}" if granted else "unchanged: the cluster has ACLs already")
