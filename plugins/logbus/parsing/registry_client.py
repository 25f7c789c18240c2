"""A schema registry of Confluent's REST interface, asked for schemas by the id or the GUID that values hold.

The credentials come with the client settings of the broker, under the names that Confluent's clients have for them
(`basic.auth.user.info`, `schema.registry.ssl.ca.location`), so that they have no way of their own to go: an Airflow connection, a
file, the environment of the driver. A registry that does not answer is nobody's dead letter: `RegistryUnavailable` fails what
asks, which is tried again.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from logbus.errors import RegistryUnavailable, UserError
from logbus.kafka.client_config import OF_REGISTRY
from logbus.parsing.decoders import AVRO, PROTOBUF, ImportedSchema, Schema, schema_guid, schema_id

USER_INFO, TOKEN, CA_LOCATION = OF_REGISTRY
BROKERS_CA, BROKERS_CA_LOCATION = "ssl.ca.pem", "ssl.ca.location"

# A registry answers from memory. One that restarts is there again within a task's retries.
TIMEOUT_SECONDS = 20.0
CONNECT_TRIES = 3
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # a schema of a thousand fields has 100 KB
IMPORTS_MAX = 300  # a registry that says a schema imports itself would never end

ACCEPT = "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
NOT_REGISTERED = (40401, 40402, 40403)  # no such subject, version, schema; a wrong URL is a 404 with another code, or with none
LOGIN_NEEDED = (401, 403)

# Protobuf's text would need a compiler; its descriptor does not.
AS_DESCRIPTOR = {"format": "serialized"}


class RegistryClient:
    """Of one registry. `http`: what asks it, by default over the network."""

    def __init__(self, url: str, settings: Mapping[str, Any], http: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/")
        self._failure: RegistryUnavailable | None = None  # of a registry that is down it is asked once, not for each schema
        self._http = http or _http_client(settings)

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def fetch(self, reference: bytes) -> Schema | None:
        """The schema with everything it imports; None if the registry says that it has no such schema."""
        number = schema_id(reference)
        path = f"/schemas/guids/{schema_guid(reference)}" if number is None else f"/schemas/ids/{number}"
        answer, form = self._get(path, {}), dict[str, str]()
        if answer is not None and answer.get("schemaType") == PROTOBUF:
            form = AS_DESCRIPTOR
            answer = self._get(path, form)
        if answer is None:
            return None
        imports: dict[str, ImportedSchema] = {}
        self._collect(answer, imports, form)
        return Schema(
            reference=reference,
            type=answer.get("schemaType") or AVRO,
            text=_storable(answer["schema"]),
            guid=answer.get("guid"),
            imports=tuple(imports.values()),
        )

    def _collect(
        self, answer: Mapping[str, Any], imports: dict[str, ImportedSchema], form: Mapping[str, str], depth: int = 1
    ) -> None:
        """Adds what a schema imports, dependencies first."""
        for imported in answer.get("references") or ():
            name, subject, version = imported["name"], imported["subject"], imported["version"]
            if name in imports:
                continue
            if len(imports) + depth > IMPORTS_MAX:
                raise RegistryUnavailable(f"the schema registry at {self.url}: a schema imports more than {IMPORTS_MAX:,} others")
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            other = self._get(path, {**form, "deleted": "true"})
            if other is None:
                raise RegistryUnavailable(
                    f"the schema registry at {self.url} has a schema that imports {subject}, version {version}, and not that one"
                )
            self._collect(other, imports, form, depth + 1)
            imports[name] = ImportedSchema(name=name, subject=subject, version=version, text=_storable(other["schema"]))

    def _get(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any] | None:
        """The answer's JSON; None if there is no such schema."""
        if self._failure is not None:
            raise self._failure
        try:
            answer = self._http.get(self.url + path, params=parameters)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            self._failure = RegistryUnavailable(f"the schema registry at {self.url} does not answer: {reason}")
            raise self._failure from None
        body = _json_object(answer)
        if answer.is_success and isinstance(body.get("schema"), str) and len(answer.content) <= ANSWER_BYTES_MAX:
            return body
        if body.get("error_code") in NOT_REGISTERED:
            return None
        if answer.status_code in LOGIN_NEEDED:
            raise RegistryUnavailable(
                f"the schema registry at {self.url} refuses this login (HTTP {answer.status_code}): set "
                f"{USER_INFO}=user:password among the client settings of the broker (docs/parsers.md)"
            )
        reason = body.get("message") or "the answer is none of a schema registry"
        raise RegistryUnavailable(f"the schema registry at {self.url}: HTTP {answer.status_code} for {path}: {reason}")


def _storable(text: str) -> str:
    """The schema as PostgreSQL's text can hold it: with JSON's own escapes for a NUL and half a surrogate pair."""
    return text.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()


def _http_client(settings: Mapping[str, Any]) -> httpx.Client:
    user, _, password = str(settings.get(USER_INFO, "")).partition(":")
    token = settings.get(TOKEN)
    return httpx.Client(
        headers={"Accept": ACCEPT, **({"Authorization": f"Bearer {token}"} if token else {})},
        auth=httpx.BasicAuth(user, password) if user else None,
        timeout=TIMEOUT_SECONDS,
        transport=httpx.HTTPTransport(retries=CONNECT_TRIES - 1, verify=tls_context(settings)),
    )


def _json_object(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = json.loads(answer.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Trusts the authorities that are given for registries, otherwise the system's, and the brokers' beside these."""
    location = settings.get(CA_LOCATION)
    try:
        context = ssl.create_default_context(cafile=location)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{CA_LOCATION}={location} cannot be read: {error}") from None
    if location is None and {BROKERS_CA, BROKERS_CA_LOCATION} & settings.keys():
        try:
            context.load_verify_locations(settings.get(BROKERS_CA_LOCATION), cadata=settings.get(BROKERS_CA))
        except (OSError, ssl.SSLError):
            pass  # the Kafka client explains that: `probe`, a folder, a file that only the brokers' clients need
    return context
