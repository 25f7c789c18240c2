"""The registry's REST surface: paths, parameters and bodies as Confluent's registry has them. What they mean is in registry.py.

Each route is a line of a table with what its user has to be allowed: `Read` or `Write` on the topic. A body has to come as JSON:
a website's page cannot send that to a registry on loopback without being asked first, and it cannot make a name of its own lead
here (the header Host is compared). Work is done on threads: a registration waits for the broker.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from logbus import errors
from logbus.web import schema_text as refusals
from logbus.web.registry import LATEST, VERSION_MAX, SchemaOrder, SchemaRegistry
from logbus.web.registry_login import RegistryLogins
from logbus.web.registry_state import LEVEL_DEFAULT, MODE_DEFAULT, KeyType, SchemaVersion
from logbus.web.schema_text import RegistryRefusal, SchemaReference, SchemaText, SchemaType, compact, protobuf_files

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
READABLE = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json", "application/octet-stream")
BODY_BYTES_MAX = 4 * 1024 * 1024  # the largest schema, each of its bytes escaped, and its references
READ, WRITE = "Read", "Write"


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One request. `names` are the parts of its path."""

    registry: SchemaRegistry
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return self.names["subject"].removeprefix(":.:")  # the default context, as some clients write it

    @property
    def version(self) -> int:
        text = self.names["version"]
        if text in ("latest", str(LATEST)):
            return LATEST
        if not _is_short_number(text) or not 1 <= int(text) <= VERSION_MAX:
            raise RegistryRefusal(refusals.INVALID_VERSION, version=text)
        return int(text)

    @property
    def schema_id(self) -> int:
        text = self.names["id"]
        if not _is_short_number(text):
            raise HTTPException(404)
        return int(text)

    @property
    def format(self) -> str:
        text = self.query.get("format", "")
        if text not in ("", "serialized"):
            raise RegistryRefusal(refusals.NOT_PERMITTED, details=f"format={text} is not supported: serialized is, for PROTOBUF")
        return text

    def says(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def page(self, items: Sequence[Any]) -> list[Any]:
        offset, limit = max(0, self._number("offset", 0)), self._number("limit", -1)
        return list(items[offset : offset + limit] if limit >= 0 else items[offset:])

    def _number(self, name: str, default: int) -> int:
        try:
            return int(self.query.get(name, default))
        except ValueError:
            raise HTTPException(400, f"{name} is a number") from None

    def order(self) -> SchemaOrder:
        """The schema in the body."""
        body, kind = self.body, self.body.get("schemaType") or SchemaType.AVRO.value
        if body.get("ruleSet"):
            refused = "this registry has no rules, and would not apply these: leave ruleSet out"
            raise RegistryRefusal(refusals.INVALID_SCHEMA, kind=kind, details=refused)
        try:
            references = tuple(
                SchemaReference(name=str(each["name"]), subject=str(each["subject"]), version=int(each["version"]))
                for each in body.get("references") or ()
            )
            schema = SchemaText(
                kind=SchemaType(kind),
                text=str(body["schema"] or ""),
                references=references,
                metadata=compact(body["metadata"], is_sorted=True) if body.get("metadata") else "",
            )
            if not isinstance((body.get("metadata") or {}).get("properties") or {}, dict):
                raise ValueError("metadata: its properties are an object")
            numbers = [None if body.get(name) in (None, -1, 0) else int(body[name]) for name in ("id", "version")]
            if not all(1 <= number <= VERSION_MAX for number in numbers if number is not None):
                raise ValueError(f"id or version: they are between 1 and {VERSION_MAX}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RegistryRefusal(
                refusals.INVALID_SCHEMA, kind=kind, details=f"the request lacks or has a wrong {error}"
            ) from None
        schema_id, version = numbers
        return SchemaOrder(schema=schema, normalize=self.says("normalize"), schema_id=schema_id, version=version)


def _is_short_number(text: str) -> bool:
    """Of no more digits than an id or a version may have: Python converts no more than some thousand."""
    return text.isdecimal() and len(text) <= len(str(VERSION_MAX))


# Schemas.


def described(call: ApiCall, version: SchemaVersion) -> dict[str, Any]:
    """With the schema's text in the format that is asked for."""
    summary = version.summary()
    if call.format == "serialized" and version.schema.kind is SchemaType.PROTOBUF:
        file = protobuf_files(call.registry.resolved(version))[-1]
        summary["schema"] = base64.b64encode(file.SerializeToString()).decode()
    return summary


def schema_of_id(call: ApiCall) -> Any:
    summary = described(call, call.registry.of_id(call.schema_id)[0])
    if call.says("fetchMaxId"):
        with call.registry.store.reading() as state:
            summary["maxId"] = state.highest_id
    return {name: value for name, value in summary.items() if name not in ("subject", "version", "id")}


def schema_of_guid(call: ApiCall) -> Any:
    summary = described(call, call.registry.of_guid(call.names["guid"]))
    return {name: value for name, value in summary.items() if name not in ("subject", "version", "id")}


def text_of_id(call: ApiCall) -> Any:
    return PlainText(described(call, call.registry.of_id(call.schema_id)[0])["schema"])


def subjects_of_id(call: ApiCall) -> Any:
    versions = _named(call, call.registry.of_id(call.schema_id))
    return call.page(list(dict.fromkeys(version.subject for version in versions)))


def versions_of_id(call: ApiCall) -> Any:
    versions = _named(call, call.registry.of_id(call.schema_id))
    return call.page([{"subject": version.subject, "version": version.version} for version in versions])


def _named(call: ApiCall, versions: Sequence[SchemaVersion]) -> list[SchemaVersion]:
    """Of these the ones that are asked for: without deleted ones, and of one subject if one is named."""
    subject = call.query.get("subject")
    return [
        version
        for version in versions
        if (call.says("deleted") or not version.is_deleted) and subject in (None, "", version.subject)
    ]


def all_schemas(call: ApiCall) -> Any:
    names = subjects(call)
    of_subjects = [call.registry.versions(name, with_deleted=call.says("deleted")) for name in names]
    only_latest = call.says("latestOnly")
    return call.page([version.summary() for versions in of_subjects for version in (versions[-1:] if only_latest else versions)])


# Subjects.


def subjects(call: ApiCall) -> Any:
    prefix = call.query.get("subjectPrefix", "").removeprefix(":.:").replace(":*:", "")
    with call.registry.store.reading() as state:
        active, names = state.subjects(), state.subjects(with_deleted=call.says("deleted") or _only_deleted(call))
    chosen = set(names) - set(active) if _only_deleted(call) else set(names)
    return sorted(name for name in chosen if name.startswith(prefix))


def paged_subjects(call: ApiCall) -> Any:
    return call.page(subjects(call))


def _only_deleted(call: ApiCall) -> bool:
    return call.says("deletedOnly") or call.says("deleted_only")  # one is Confluent's, the other its Python client's


def register(call: ApiCall) -> Any:
    version = call.registry.register(call.subject, call.order())
    return {"id": version.schema_id, "version": version.version, "guid": version.guid}


def lookup(call: ApiCall) -> Any:
    return described(call, call.registry.lookup(call.subject, call.order(), with_deleted=call.says("deleted")))


def versions(call: ApiCall) -> Any:
    listed = call.registry.versions(call.subject, with_deleted=call.says("deleted") or _only_deleted(call))
    return call.page([version.version for version in listed if version.is_deleted or not _only_deleted(call)])


def version(call: ApiCall) -> Any:
    return described(call, call.registry.version(call.subject, call.version, with_deleted=call.says("deleted")))


def version_text(call: ApiCall) -> Any:
    return PlainText(version(call)["schema"])


def referenced_by(call: ApiCall) -> Any:
    return call.page(call.registry.referring_ids(call.subject, call.version))


def latest_with_metadata(call: ApiCall) -> Any:
    """The latest version with these properties: `key` and `value` as often as there are properties."""
    asked_for = dict(zip(json.loads(call.query.get("keys", "[]")), json.loads(call.query.get("values", "[]")), strict=False))
    for each in reversed(call.registry.versions(call.subject, with_deleted=call.says("deleted"))):
        metadata = json.loads(each.schema.metadata or "{}")
        if asked_for.items() <= (metadata.get("properties") or {}).items():
            return described(call, each)
    raise RegistryRefusal(refusals.SCHEMA_NOT_FOUND, "Schema not found")


def delete_subject(call: ApiCall) -> Any:
    return call.registry.delete_subject(call.subject, permanent=call.says("permanent"))


def delete_version(call: ApiCall) -> Any:
    return call.registry.delete_version(call.subject, call.version, permanent=call.says("permanent"))


# Compatibility, levels, modes.


def compatible_with_version(call: ApiCall) -> Any:
    return _verdict(call, call.version)


def compatible_with_all(call: ApiCall) -> Any:
    return _verdict(call, None)


def _verdict(call: ApiCall, version: int | None) -> dict[str, Any]:
    try:
        problems = call.registry.problems_with(call.subject, call.order(), version)
    except RegistryRefusal as refusal:
        if refusal.code != refusals.INVALID_SCHEMA or not call.says("verbose"):
            raise
        problems = [str(refusal)]  # one who asks why is told that it is no schema at all
    return {"is_compatible": not problems, **({"messages": list(problems)} if call.says("verbose") else {})}


def level(call: ApiCall) -> Any:
    return _setting(call, KeyType.CONFIG, "compatibilityLevel", LEVEL_DEFAULT, refusals.NO_OWN_LEVEL)


def mode(call: ApiCall) -> Any:
    return _setting(call, KeyType.MODE, "mode", MODE_DEFAULT, refusals.NO_OWN_MODE)


def _setting(call: ApiCall, kind: KeyType, name: str, default: str, refusal: int) -> dict[str, Any]:
    subject = _subject_or_all(call)
    own = call.registry.setting(kind, subject)
    if own is None and subject is not None and not call.says("defaultToGlobal"):
        raise RegistryRefusal(refusal, subject=subject)
    return {name: (own or call.registry.setting(kind, None) or {}).get(name, default)}


def change_level(call: ApiCall) -> Any:
    supported = {"compatibility", "compatibilityLevel"}
    others = [name for name, value in call.body.items() if value is not None and name not in supported]
    if others:
        details = f"{', '.join(others)} cannot be set here: this registry has compatibility alone"
        raise RegistryRefusal(refusals.NOT_PERMITTED, details=details)
    level = str(call.body.get("compatibility") or call.body.get("compatibilityLevel") or "")
    call.registry.change_level(_subject_or_all(call), level)
    return {"compatibility": level.upper()}


def change_mode(call: ApiCall) -> Any:
    mode = str(call.body.get("mode") or "")
    call.registry.change_mode(_subject_or_all(call), mode, is_forced=call.says("force"))
    return {"mode": mode.upper()}


def reset_level(call: ApiCall) -> Any:
    return {"compatibilityLevel": _reset(call, KeyType.CONFIG).get("compatibilityLevel", LEVEL_DEFAULT)}


def reset_mode(call: ApiCall) -> Any:
    return {"mode": _reset(call, KeyType.MODE).get("mode", MODE_DEFAULT)}


def _reset(call: ApiCall, kind: KeyType) -> Mapping[str, Any]:
    subject = _subject_or_all(call)
    before = call.registry.reset(kind, subject)
    if before is None and subject is not None:
        raise RegistryRefusal(refusals.SUBJECT_NOT_FOUND, subject=subject)
    return before or {}


def _subject_or_all(call: ApiCall) -> str | None:
    return (call.subject or None) if "subject" in call.names else None


class PlainText(str):
    """An answer that is a schema's own text."""


Handler = Callable[[ApiCall], Any]
SUBJECT, VERSION = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
ROUTES: Sequence[tuple[str, str, Handler, str]] = (
    ("GET", "/", lambda call: {}, READ),
    ("GET", "/schemas", all_schemas, READ),
    ("GET", "/schemas/types", lambda call: [SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO], READ),
    ("GET", "/schemas/ids/{id}", schema_of_id, READ),
    ("GET", "/schemas/ids/{id}/schema", text_of_id, READ),
    ("GET", "/schemas/ids/{id}/subjects", subjects_of_id, READ),
    ("GET", "/schemas/ids/{id}/versions", versions_of_id, READ),
    ("GET", "/schemas/guids/{guid}", schema_of_guid, READ),
    ("GET", "/contexts", lambda call: call.page(["."]), READ),
    ("GET", "/subjects", paged_subjects, READ),
    ("POST", SUBJECT, lookup, READ),
    ("DELETE", SUBJECT, delete_subject, WRITE),
    ("GET", f"{SUBJECT}/metadata", latest_with_metadata, READ),
    ("GET", f"{SUBJECT}/versions", versions, READ),
    ("POST", f"{SUBJECT}/versions", register, WRITE),
    ("GET", VERSION, version, READ),
    ("DELETE", VERSION, delete_version, WRITE),
    ("GET", f"{VERSION}/schema", version_text, READ),
    ("GET", f"{VERSION}/referencedby", referenced_by, READ),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", compatible_with_version, READ),
    ("POST", "/compatibility/subjects/{subject}/versions", compatible_with_all, READ),
    *(
        (method, path, handler, rights)
        for path in ("/config", "/config/{subject}")
        for method, handler, rights in (("GET", level, READ), ("PUT", change_level, WRITE), ("DELETE", reset_level, WRITE))
    ),
    *(
        (method, path, handler, rights)
        for path in ("/mode", "/mode/{subject}")
        for method, handler, rights in (("GET", mode, READ), ("PUT", change_mode, WRITE), ("DELETE", reset_mode, WRITE))
    ),
)


def make_app(registry: SchemaRegistry, *, logins: RegistryLogins | None, hosts: Sequence[str] = ("*",)) -> ASGIApp:
    """`logins` is None where everybody who can connect may do everything; `hosts` are the names that it answers to."""

    def route(method: str, path: str, handler: Handler, operation: str) -> Route:
        async def answer(request: Request) -> Response:
            names = {name: unquote(value) for name, value in request.path_params.items()}
            query = {**request.query_params, **_lists(request)}
            body = await _body(request) if method in ("POST", "PUT") else {}
            call = ApiCall(registry=registry, names=names, query=query, body=body)
            return await run_in_threadpool(_answered, call, handler, logins, operation, request.headers.get("authorization", ""))

        return Route(path, answer, methods=[method])

    async def health(request: Request) -> Response:
        failure = registry.store.failure
        return _json({"status": failure or "ok"}, 503 if failure else 200)

    app = Starlette(
        routes=[*(route(*line) for line in ROUTES), Route("/healthz", health)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)],
        exception_handlers={HTTPException: _http_error, errors.LogbusError: _http_error, Exception: _defect},
    )
    return RawPaths(app)


class RawPaths:
    """Routes by the path as it was sent: a subject may have a slash in its name, sent as %2F."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if raw := scope.get("raw_path"):
            path = raw.decode("ascii", "replace").partition("?")[0]
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _answered(call: ApiCall, handler: Handler, logins: RegistryLogins | None, operation: str, authorization: str) -> Response:
    if logins is not None:
        try:
            rights = logins.rights(authorization)
        except errors.LogbusError as error:
            raise HTTPException(503, f"nobody can be logged in: {error}") from None
        if rights.refusal:
            raise HTTPException(401, rights.refusal, {"WWW-Authenticate": 'Basic realm="schemas"'})
        if operation not in rights.operations:
            raise HTTPException(403, f"this needs {operation} on the topic {call.registry.store.topic}: logbus acl add")
    answer = handler(call)
    if isinstance(answer, PlainText):
        return Response(answer, media_type=CONTENT_TYPE)
    return _json(answer)


def _lists(request: Request) -> dict[str, str]:
    """The parameters that may come several times."""
    pairs = request.query_params.multi_items()
    return {f"{name}s": json.dumps([unquote(value) for each, value in pairs if each == name]) for name in ("key", "value")}


async def _body(request: Request) -> Mapping[str, Any]:
    kind = request.headers.get("content-type", CONTENT_TYPE if request.method == "GET" else "").partition(";")[0].strip().lower()
    if kind not in READABLE:
        raise HTTPException(415, f"send JSON as {CONTENT_TYPE} or application/json")
    chunks, length = [], 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > BODY_BYTES_MAX:
            raise HTTPException(413, f"a request has at most {BODY_BYTES_MAX} bytes")
        chunks.append(chunk)
    try:
        body = json.loads(b"".join(chunks))
        compact(body).encode()  # half a character, \ud800, could neither be stored nor answered
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is not an object")
    return body


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(compact(value), status, dict(headers or {}), CONTENT_TYPE)


def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RegistryRefusal):
        return _json({"error_code": error.code, "message": str(error)}, error.status)
    if isinstance(error, errors.LogbusError):  # the broker is away, or has changed what it allows
        return _json({"error_code": refusals.STORE_FAILED, "message": str(error)}, 500)
    assert isinstance(error, HTTPException)
    standard = error.detail if error.status_code not in (404, 405) else f"HTTP {error.status_code} {error.detail}"
    return _json({"error_code": error.status_code, "message": standard}, error.status_code, error.headers)


def _defect(request: Request, error: Exception) -> Response:
    return _json({"error_code": 500, "message": "Internal Server Error"}, 500)
