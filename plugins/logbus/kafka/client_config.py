"""Client settings as people have them already, in librdkafka's names; and tokens for SASL's OAUTHBEARER that librdkafka does not
get by itself: those of Amazon's and Google's managed clusters, or of a function of the user's.

Settings name what makes tokens by a text, the recipe, since they travel as JSON, also to Spark's executors: `msk:REGION`, `gcp`,
or the dotted path of a function that librdkafka's clients could call. It is given `sasl.oauthbearer.config`, and returns a
token and when that expires, in seconds since the epoch. Where the address says enough, no recipe is needed, as for Airflow's
Kafka provider.

A file is JSON, or lines of `name=value`: what kcat reads (`-F`), and the `client.properties` of Kafka's own tools and of JVM
clients. These say in a JAAS line and in stores what librdkafka has settings for; Airflow's connections may hold them, too.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

from logbus import atomic_write, errors
from logbus.errors import UserError

TokenFunction = Callable[[str], tuple[str, float]]

OAUTHBEARER, RECIPE = "OAUTHBEARER", "oauth_cb"
MSK, GCP = "msk:", "gcp"
# b-1.orders.abcde1.c2.kafka.eu-west-1.amazonaws.com:9098, boot-abcde1.c2.kafka-serverless.us-east-1.amazonaws.com:9098
MSK_ADDRESS = re.compile(r"\.kafka(?:-serverless)?\.([a-z\d-]+)\.amazonaws\.com(?:\.cn)?(?=[:,\s]|$)", re.IGNORECASE)
GCP_ADDRESS = re.compile(r"\.managedkafka\.[\w.-]*cloud\.goog(?=[:,\s]|$)", re.IGNORECASE)
GCP_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def token_recipe(config: Mapping[str, Any]) -> str | None:
    """What makes the tokens of a client with these settings; None where it needs none, or librdkafka gets them."""
    if str(config.get("sasl.mechanism") or config.get("sasl.mechanisms")).upper() != OAUTHBEARER:
        return None
    if own := config.get(RECIPE):
        return str(own)
    if config.get("sasl.oauthbearer.method") == "oidc" or config.get("enable.sasl.oauthbearer.unsecure.jwt"):
        return None
    servers = str(config.get("bootstrap.servers"))
    if (address := MSK_ADDRESS.search(servers)) is not None:
        return MSK + address[1].lower()
    if GCP_ADDRESS.search(servers):
        return GCP
    raise UserError(
        "sasl.mechanism is OAUTHBEARER, and no setting says where tokens come from: sasl.oauthbearer.method=oidc with "
        "sasl.oauthbearer.token.endpoint.url, or oauth_cb with msk:REGION, gcp, or the dotted path of a function"
    )


def token_function(recipe: str) -> TokenFunction:
    """What the recipe names. `UserError` with what to install or to correct."""
    if recipe.startswith(MSK):
        errors.require("aws_msk_iam_sasl_signer")
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        return partial(msk_token, MSKAuthTokenProvider, recipe.removeprefix(MSK))
    if recipe == GCP:
        errors.require("google.auth")
        return gcp_token
    module, _, name = recipe.rpartition(".")
    try:
        function: TokenFunction = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"oauth_cb is {recipe!r}, and there is no such function here: {error}") from None
    if not callable(function):
        raise UserError(f"oauth_cb is {recipe!r}, which is not a function")
    return function


def msk_token(provider: Any, region: str, config: str) -> tuple[str, float]:
    """A signed request, by the credentials that AWS's own libraries find; made here, without asking anybody."""
    token, expires_ms = provider.generate_auth_token(region)
    return token, expires_ms / 1000


def gcp_token(config: str) -> tuple[str, float]:
    """An access token of the application's default credentials, in the frame of a JWT that Google's brokers take."""
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=[GCP_SCOPE])
    credentials.refresh(Request())
    expires = credentials.expiry.replace(tzinfo=UTC).timestamp()
    head = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {
        "iss": "Google",
        "sub": credentials.service_account_email,
        "scope": "kafka",
        "iat": int(time.time()),
        "exp": int(expires),
    }
    parts = (json.dumps(head), json.dumps(claims), credentials.token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), expires


# Client settings as people have them already, in librdkafka's names.


Settings = dict[str, Any]

# Settings of JVM clients that name classes, or tune what librdkafka does by itself, and callbacks of applications: what is shared
# with an application has them, and they say nothing about where the brokers are or who asks.
OF_THE_JVM = re.compile(
    r"(?:key|value)\.(?:de)?serializer(?:\..*)?|(?:ssl|sasl)\.(?:engine\.factory|(?:\w+\.)*callback\.handler)\.class|sasl\.login\..*|"
    r"ssl\.(?:protocol|enabled\.protocols|provider|cipher\.suites\.jvm|secure\.random\.implementation|"
    r"(?:trust|key)manager\.algorithm|truststore\.password)|interceptor\.classes|metric(?:s\.|\.reporters).*|partitioner\.class|"
    r"max\.block\.ms|buffer\.memory|max\.request\.size|default\.api\.timeout\.ms|request\.timeout\.ms|max\.poll\.records|"
    r"partition\.assignment\.strategy|auto\.include\.jmx\.reporter|enable\.metrics\.push|"
    r"schema\.registry\.(?!ssl\.ca\.location).*|basic\.auth\.(?!user\.info).*|security\.providers|(?:error|throttle|stats|log)_cb|on_commit"
)

# PLAIN and SCRAM have the user in the JAAS line; OAUTHBEARER has a client there, or since Kafka 4.1 in settings of its own.
JAAS = re.compile(
    r"([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b((?:\s+[\w.-]+\s*=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s;]+))*)\s*;?"
)
JAAS_OPTION = re.compile(r"([\w.-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;]+))")
OF_JAAS: Mapping[str, Mapping[str, str]] = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}
RENAMED: Mapping[str, str] = {
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "metadata.broker.list": "bootstrap.servers",  # librdkafka's other name
}

# Settings of Confluent's clients for the schema registry (logbus.parsing.registry_client), which no Kafka client knows.
OF_REGISTRY = ("basic.auth.user.info", "bearer.auth.token", "schema.registry.ssl.ca.location")

# Parts of the names of settings whose values are secrets.
SECRET_WORDS = (
    "user.info",
    "auth.token",
    "password",
    "passphrase",
    "secret",
    "key.pem",
    "jaas",
    "oauthbearer.config",
    "oauthbearer.extensions",
)

TO_PEM = "openssl pkcs12 -in {store} -nokeys -out ca.pem"
TO_PKCS12 = "keytool -importkeystore -srckeystore {store} -destkeystore {name}.p12 -deststoretype PKCS12"


def is_secret(name: str) -> bool:
    """Whether nobody else may see the setting's value."""
    return any(word in name for word in SECRET_WORDS)


def read_client_config(path: Path) -> Settings:
    """The settings of a file. UserError with what to do where it cannot be read, or has what librdkafka cannot use."""
    try:
        text = path.read_text("utf-8-sig")  # editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the client settings {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return translated(_json(text) if text.lstrip().startswith(("{", "[")) else dict(_properties(text)))
    except UserError as error:
        raise UserError(f"the client settings {path}: {error}") from None


def translated(settings: Mapping[str, Any]) -> Settings:
    """The same in librdkafka's names; settings that are its own stay as they are, and win."""
    rest = {name: value for name, value in settings.items() if not OF_THE_JVM.fullmatch(name)}
    own: Settings = {}
    if (jaas := rest.pop("sasl.jaas.config", None)) is not None:
        own |= _of_jaas(str(jaas))
    own |= _of_truststore(rest) | _of_keystore(rest)
    if rest.get("ssl.endpoint.identification.algorithm") == "":  # as the JVM switches it off
        rest["ssl.endpoint.identification.algorithm"] = "none"
    own |= {RENAMED.get(name, name): value for name, value in rest.items()}
    if own.get("sasl.mechanism") == "AWS_MSK_IAM":
        own["sasl.mechanism"] = "OAUTHBEARER"
    if own.get("sasl.oauthbearer.token.endpoint.url"):
        own.setdefault("sasl.oauthbearer.method", "oidc")
    return own


LOGIN = "org.apache.kafka.common.security"
OF_MECHANISMS = {"PLAIN": "plain.PlainLoginModule", "SCRAM": "scram.ScramLoginModule"}


def of_the_jvm(settings: Mapping[str, Any]) -> dict[str, str]:
    """The same settings of librdkafka as Kafka's own tools and JVM clients have them, which we read as well."""
    values = {name: str(value) for name, value in settings.items()}
    login = OF_MECHANISMS.get(values.get("sasl.mechanism", "").partition("-")[0])
    if login is not None and {"sasl.username", "sasl.password"} <= values.keys():
        user, password = (re.sub(r'(["\\])', r"\\\1", values.pop(f"sasl.{name}")) for name in ("username", "password"))
        values["sasl.jaas.config"] = f'{LOGIN}.{login} required username="{user}" password="{password}";'
    if "ssl.ca.location" in values:
        values |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": values.pop("ssl.ca.location")}
    for name, own in RENAMED.items():
        if own.endswith(".pem") and own in values:
            store = ".".join(name.split(".")[:2])
            values |= {f"{store}.type": "PEM", name: values.pop(own)}
    return values


def properties(settings: Mapping[str, Any]) -> str:
    """The text of a file with these settings of librdkafka, as `of_the_jvm`."""
    # JSON's escapes of what is not ASCII, of backslashes and of line ends are those of a properties file.
    return "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in of_the_jvm(settings).items())


def write(path: Path, settings: Mapping[str, Any]) -> None:
    """The file with these settings, which nobody else could read at any time."""
    try:
        atomic_write.replace_atomically(path, properties(settings).encode(), mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def inlined(settings: Mapping[str, Any]) -> Settings:
    """The same with certificates and keys themselves in place of the names of their files: for another machine."""
    inline = dict(settings)
    for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
        path = inline.get(f"{name}.location")
        if path is not None and Path(path).is_file():
            inline[f"{name}.pem"] = Path(inline.pop(f"{name}.location")).read_text()
    return inline


def of_brokers(settings: Mapping[str, Any]) -> Settings:
    """The same without what is for the schema registry."""
    return {name: value for name, value in settings.items() if name not in OF_REGISTRY}


def of_user(settings: Mapping[str, Any], user: str, password: str) -> Settings:
    """The same for another user, who logs in by a password."""
    of_the_other = ("sasl.", "ssl.certificate.", "ssl.key.", "ssl.keystore.")
    kept = {name: value for name, value in settings.items() if not name.startswith(of_the_other)}
    mechanism = str(settings.get("sasl.mechanism", ""))
    mechanism = mechanism if mechanism.partition("-")[0] in OF_MECHANISMS else "SCRAM-SHA-512"
    return {**kept, "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def _json(text: str) -> Settings:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UserError(f"this begins like JSON and is not: {error}") from None
    if not isinstance(settings, dict):
        raise UserError('JSON has to be an object here, such as {"security.protocol": "SSL"}')
    return settings


ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
KEY = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)", re.DOTALL)


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a properties file, as Java reads them: comments, continued lines, escapes."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":
            continue
        while (len(whole) - len(whole.rstrip("\\"))) % 2:  # an odd number of backslashes continues the line
            whole = whole[:-1] + next(lines, (0, ""))[1].lstrip()
        match = KEY.fullmatch(whole)
        if match is None:
            raise UserError(f"line {number} is not of the form name=value (or write JSON)")
        yield _unescaped(match[1]), _unescaped(match[2].rstrip())


def _unescaped(text: str) -> str:
    return ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)) if len(match[1]) == 5 else ESCAPED.get(match[1], match[1]), text)


def _of_jaas(line: str) -> Settings:
    match = JAAS.fullmatch(line.strip())
    if match is None:
        raise UserError("sasl.jaas.config is not understood: set sasl.username and sasl.password instead")
    module = match[1].rpartition(".")[2]
    if module == "IAMLoginModule" and not match[2]:
        return {"sasl.mechanism": "OAUTHBEARER"}  # the same listener of Amazon's takes it, for clients without the JVM's class
    if module == "Krb5LoginModule":
        raise UserError("GSSAPI (Kerberos) is not supported: use a listener with SCRAM, OAUTHBEARER or mTLS")
    if module not in OF_JAAS:
        raise UserError(
            f"sasl.jaas.config names {module}, which is a class of the JVM: PLAIN, SCRAM and OAUTHBEARER are understood"
        )
    names = OF_JAAS[module]
    options = {name: re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in JAAS_OPTION.findall(match[2])}
    return {names[name]: value for name, value in options.items() if name in names}


def _of_truststore(settings: Settings) -> Settings:
    """Takes the trust store from `settings`."""
    kind, store = str(settings.pop("ssl.truststore.type", "JKS")).upper(), settings.pop("ssl.truststore.location", None)
    if store is None:
        return {}
    if kind == "PEM":
        return {"ssl.ca.location": store}
    commands = (
        [TO_PEM.format(store=store)]
        if kind == "PKCS12"
        else [
            TO_PKCS12.format(store=store, name="ca"),
            TO_PEM.format(store="ca.p12"),
        ]
    )
    raise UserError(
        f"ssl.truststore.location is a {kind} store, which only the JVM reads: make a PEM file of it "
        f"(`{' && '.join(commands)}`) and set ssl.ca.location to that"
    )


def _of_keystore(settings: Settings) -> Settings:
    """Takes a key store in PEM from `settings`. librdkafka reads PKCS12 itself, by the same setting but without a type."""
    store = settings.get("ssl.keystore.location")
    kind = str(settings.pop("ssl.keystore.type", "JKS" if str(store).endswith(".jks") else "PKCS12")).upper()
    if store is None or kind == "PKCS12":
        return {}
    if kind != "PEM":
        raise UserError(
            f"ssl.keystore.location is a {kind} store, which only the JVM reads: convert it "
            f"(`{TO_PKCS12.format(store=store, name='keys')}`) and set ssl.keystore.type=PKCS12"
        )
    del settings["ssl.keystore.location"]
    return {"ssl.certificate.location": store, "ssl.key.location": store}
