"""A schema registry in this process, over HTTP: what a load asks of Confluent's, and answers as that gives them."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from logbus.parsing.decoders import reference_to_id


@dataclass
class Registry:
    """`login`: what it wants to see as `user:password`. `away`: ids for which it is unavailable. `asked`: the paths of all requests."""

    login: str | None = None
    away: set[int] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    by_id: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self, port: int = 0) -> None:
        """On its former `port` it is the same one again."""
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler())
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def register(
        self, subject: str, schema: Any, schema_type: str = "AVRO", references: Sequence[dict[str, Any]] = (), schema_id: int = 0
    ) -> int:
        number = schema_id or len(self.by_id) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer: dict[str, Any] = {"schema": text, "guid": str(uuid.UUID(int=number))}
        if schema_type != "AVRO":
            answer["schemaType"] = schema_type
        if references:
            answer["references"] = list(references)
        self.by_id[number] = answer
        self.versions.setdefault(subject, []).append({**answer, "id": number})
        return number

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        match [unquote(part) for part in urlsplit(path).path.split("/")[1:]]:
            case ["schemas", "ids", number] if int(number) in self.away:
                return 503, {"error_code": 503, "message": "Service Unavailable"}
            case ["schemas", "ids", number] if int(number) in self.by_id:
                return 200, self.by_id[int(number)]
            case ["schemas", "guids", guid]:
                found = [answer for answer in self.by_id.values() if answer["guid"] == guid]
                if found:
                    return 200, found[0]
            case ["subjects", subject, "versions", version] if len(self.versions.get(subject, ())) >= int(version):
                return 200, self.versions[subject][int(version) - 1]
            case ["schemas" | "subjects", *_]:
                pass
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # header and body are two packets: without this each answer waits 40 ms

            def do_GET(self) -> None:
                registry.asked.append(self.path)
                status, body = registry.answer(self.path)
                if registry.login is not None:
                    expected = "Basic " + base64.b64encode(registry.login.encode()).decode()
                    if self.headers.get("Authorization") != expected:
                        status, body = 401, {"error_code": 40101, "message": "Unauthorized"}
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    yield server
    if server.thread.is_alive():
        server.stop()


def by_id(number: int, payload: bytes) -> bytes:
    """A value as serializers write it."""
    return reference_to_id(number) + payload
