"""Where users' credentials, ACLs and quotas are kept: one interface, and what a standalone broker and a cluster keep them in.

A standalone broker has them in a file of its data directory (`LocalSecurity`). A cluster (`api/metadata_source.py`) has them in
znodes, each with the content that Kafka 3.9 writes:

    /config/users/U                             credentials and quotas of the user U; of all users without their own: `<default>`
    /config/clients/C, /config/ips/I            quotas of a client id or an address, likewise
    /kafka-acl/TYPE/R                           ACLs of the resource R
    /kafka-acl-extended/prefixed/TYPE/R         ACLs of all whose names begin with R
    /logbus/security/nobody_key                 see SecurityState

So one node holds what a few administrators write about one thing, and stays far below ZooKeeper's limit. Kafka keeps the quotas
of a user's clients in nodes below the user's; here they are in the user's own, under a key that Kafka ignores.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, unquote

from logbus_broker.cluster.local_files import Files, Job, reading
from logbus_broker.security import state as security_state
from logbus_broker.security.state import SecurityState, decode_state, encode_state

SECURITY_FILE = "security.json"

Edit = Callable[[SecurityState], SecurityState]


class SecurityStore(Protocol):
    """`state` is another object after each change, also by another broker of the cluster; then `on_change` is called."""

    on_change: Callable[[], None]

    @property
    def state(self) -> SecurityState: ...

    def change(self, edit: Edit) -> Generator[Any, Any, None]:
        """Steps of a background task that store what `edit` makes of the state; after them it is in effect. `edit` may be called
        again, with a newer state, if another broker was faster. Raises what `edit` raises, StorageError, RequestTimedOut."""


class LocalSecurity:
    """The one of a standalone broker: a file in its data directory. Changes are tasks of one queue, so none runs beside
    another."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.on_change: Callable[[], None] = lambda: None
        stored = files.read_json(SECURITY_FILE)
        with reading(SECURITY_FILE):
            self.state = SecurityState() if stored is None else decode_state(stored)

    def change(self, edit: Edit) -> Generator[Job, Any, None]:
        changed = edit(self.state)
        if changed == self.state:
            return
        yield lambda: self._files.write_json_atomic(SECURITY_FILE, encode_state(changed))
        self.state = changed
        self.on_change()


# -- znodes ----------------------------------------------------------------------------------------------------------------------

_ENTITIES = {"user": "/config/users", "client-id": "/config/clients", "ip": "/config/ips"}
_PATTERNS = {
    security_state.PatternType.LITERAL: "/kafka-acl",
    security_state.PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
_CamelCase = Mapping[Any, str]  # Kafka's names of its enumerations
_RESOURCES: _CamelCase = {
    kind: kind.name.title().replace("_", "")
    for kind in security_state.AclResourceType
    if kind is not security_state.AclResourceType.ANY
}
_OPERATIONS: _CamelCase = {operation: operation.name.title().replace("_", "") for operation in security_state.AclOperation}
_PERMISSIONS: _CamelCase = {permission: permission.name.title() for permission in security_state.AclPermission}
_MECHANISMS: _CamelCase = {mechanism: mechanism.name.replace("_", "-") for mechanism in security_state.ScramMechanism}

COUNTER = "/logbus/security"  # its version counts the changes of all these nodes
_NOBODY_KEY = f"{COUNTER}/nobody_key"
_RESOURCE_PARENTS = [f"{root}/{resource}" for root in _PATTERNS.values() for resource in _RESOURCES.values()]
BASE_PATHS = (COUNTER, *_ENTITIES.values(), "/kafka-acl-extended", *_PATTERNS.values(), *_RESOURCE_PARENTS)
# Each node with content is below one of these.
PARENTS = (COUNTER, *_ENTITIES.values(), *_RESOURCE_PARENTS)

_DEFAULT = "<default>"


def by_znode(state: SecurityState) -> dict[str, SecurityState]:
    """What each node holds, by its path."""
    credentials: dict[str, dict[Any, Any]] = {}
    acls: dict[str, set[security_state.Acl]] = {}
    quotas: dict[str, dict[Any, Any]] = {}
    for (user, mechanism), credential in state.credentials.items():
        credentials.setdefault(f"{_ENTITIES['user']}/{_escaped(user)}", {})[user, mechanism] = credential
    for acl in state.acls:
        parent = f"{_PATTERNS[acl.pattern_type]}/{_RESOURCES[acl.resource_type]}"
        acls.setdefault(f"{parent}/{_escaped(acl.resource_name)}", set()).add(acl)
    for entity, values in state.quotas.items():
        kind, name = max(entity, key=lambda part: part[0])  # "user" of a user's client id
        quotas.setdefault(f"{_ENTITIES[kind]}/{_escaped(name)}", {})[entity] = values
    nodes = {
        path: SecurityState(
            credentials=credentials.get(path, {}), acls=frozenset(acls.get(path, ())), quotas=quotas.get(path, {})
        )
        for path in dict.fromkeys((*credentials, *acls, *quotas))
    }
    if state.nobody_key:
        nodes[_NOBODY_KEY] = SecurityState(nobody_key=state.nobody_key)
    return nodes


def to_row(path: str, content: SecurityState) -> dict[str, Any]:
    """A node's content as a JSON object."""
    if path == _NOBODY_KEY:
        return {"version": 1, "key": base64.b64encode(content.nobody_key).decode()}
    if path.startswith(tuple(_PATTERNS.values())):
        return {"version": 1, "acls": [_acl_row(acl) for acl in sorted(content.acls)]}
    config: dict[str, str] = {}
    clients: dict[str, dict[str, str]] = {}
    for (_, mechanism), credential in sorted(content.credentials.items()):
        config[_MECHANISMS[mechanism]] = _credential_text(credential)
    for entity, values in content.quotas.items():
        target = config if len(entity) == 1 else clients.setdefault(_escaped(dict(entity)["client-id"]), {})
        target.update((key, repr(value)) for key, value in values.items())
    row: dict[str, Any] = {"version": 1, "config": config}
    return {**row, "clients": clients} if clients else row


def from_row(path: str, row: Mapping[str, Any]) -> SecurityState:
    """The reverse; AttributeError, KeyError, TypeError or ValueError if the row is neither ours nor Kafka's."""
    if path == _NOBODY_KEY:
        return SecurityState(nobody_key=base64.b64decode(row["key"]))
    parent, _, escaped = path.rpartition("/")
    name = None if escaped == _DEFAULT else unquote(escaped)
    if parent not in _ENTITIES.values():
        return SecurityState(acls=frozenset(_acls_of(parent, unquote(escaped), row)))
    own: security_state.QuotaEntity = frozenset({(_key(_ENTITIES, parent), name)})
    config = dict(row["config"])
    texts = {mechanism: config.pop(key) for mechanism, key in _MECHANISMS.items() if key in config}
    quotas = {own: _numbers(config)} if config else {}
    for client, values in row.get("clients", {}).items():
        quotas[own | {("client-id", None if client == _DEFAULT else unquote(client))}] = _numbers(values)
    return SecurityState(
        credentials={(name, mechanism): _credential_of(text) for mechanism, text in texts.items() if name is not None},
        quotas=quotas,
    )


def _escaped(name: str | None) -> str:
    """As the last part of a path, which cannot contain `/` and control characters, and cannot be `.` or `..`."""
    if name is None:
        return _DEFAULT
    return quote(name, safe="*") if name.strip(".") else name.replace(".", "%2E")


def _credential_text(credential: security_state.ScramCredential) -> str:
    parts = {"salt": credential.salt, "stored_key": credential.stored_key, "server_key": credential.server_key}
    encoded = [f"{name}={base64.b64encode(part).decode()}" for name, part in parts.items()]
    return ",".join((*encoded, f"iterations={credential.iterations}"))


def _credential_of(text: str) -> security_state.ScramCredential:
    parts: dict[str, str] = dict(part.split("=", 1) for part in text.split(","))  # type: ignore[misc]
    return security_state.ScramCredential(
        salt=base64.b64decode(parts["salt"]),
        iterations=int(parts["iterations"]),
        stored_key=base64.b64decode(parts["stored_key"]),
        server_key=base64.b64decode(parts["server_key"]),
    )


def _numbers(values: Mapping[str, str]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items()}


def _acl_row(acl: security_state.Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permissionType": _PERMISSIONS[acl.permission],
        "operation": _OPERATIONS[acl.operation],
        "host": acl.host,
    }


def _acls_of(parent: str, name: str, row: Mapping[str, Any]) -> Iterator[security_state.Acl]:
    root, _, resource = parent.rpartition("/")
    for acl in row["acls"]:
        yield security_state.Acl(
            resource_type=_key(_RESOURCES, resource),
            pattern_type=_key(_PATTERNS, root),
            resource_name=name,
            principal=acl["principal"],
            host=acl["host"],
            operation=_key(_OPERATIONS, acl["operation"]),
            permission=_key(_PERMISSIONS, acl["permissionType"]),
        )


def _key(names: Mapping[Any, str], text: str) -> Any:
    for key, name in names.items():
        if name == text:
            return key
    raise ValueError(f"unknown: {text!r}")
