"""The answers of Confluent's registry to the same requests in the same order: status, code and body, from its documentation, its
clients and the interface's description; each request goes to the registry that the ones before it have left.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.cli.registry import NAMES_OF_LOOPBACK
from logbus.errors import BrokerUnavailable, ExitCode
from logbus.web.registry import REFERENCES_DEPTH_MAX
from logbus.web.registry_login import ASKED_AT_ONCE_MAX, RegistryLogins, RegistryRights
from logbus.web.registry_state import Entry

from tests.support.manual_clock import ManualClock
from tests.support.registries import ListedStore, listed_registry

NAME = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
WITH_DEFAULT = NAME.replace("}]}", '},{"name":"age","type":"int","default":0}]}')
WITHOUT_DEFAULT = NAME.replace("}]}", '},{"name":"city","type":"string"}]}')
USERS, LATEST = "/subjects/users/versions", "/subjects/users/versions/latest"
CHECK = "/compatibility/subjects/users/versions"
QUOTES = json.dumps({"examples": [""] * 200_000}, separators=(",", ":"))  # each is two bytes in a record
ANY = object()


def avro(text: str, **others: Any) -> dict[str, Any]:
    return {"schema": text, **others}


def error(code: int, message: object = ANY) -> dict[str, Any]:
    return {"error_code": code, "message": message}


ANSWERS: tuple[tuple[str, str, Any, int, Any], ...] = (
    ("GET", "/", None, 200, {}),
    ("GET", "/subjects", None, 200, []),
    ("GET", "/schemas/types", None, 200, ["JSON", "PROTOBUF", "AVRO"]),
    ("GET", "/contexts", None, 200, ["."]),
    ("GET", "/contexts?offset=1", None, 200, []),
    ("GET", "/config", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("GET", "/mode", None, 200, {"mode": "READWRITE"}),
    ("GET", USERS, None, 404, error(40401, "Subject 'users' not found.")),
    ("GET", LATEST, None, 404, error(40401, "Subject 'users' not found.")),
    ("GET", "/schemas/ids/1", None, 404, error(40403, "Schema 1 not found")),
    ("GET", "/nothing", None, 404, error(404, "HTTP 404 Not Found")),
    ("GET", "/associations/resources/-/users", None, 404, error(404, "HTTP 404 Not Found")),
    ("POST", USERS, avro("{"), 422, error(42201)),
    ("POST", USERS, avro('{"type":"strin"}'), 422, error(42201)),
    ("POST", USERS, avro(WITHOUT_DEFAULT.replace('"string"}]', '"string","default":null}]')), 422, error(42201)),
    ("POST", f"{CHECK}/latest", avro('{"type":"strin"}'), 422, error(42201)),
    ("POST", f"{CHECK}?verbose=true", avro('{"type":"strin"}'), 200, {"is_compatible": False, "messages": ANY}),
    ("POST", USERS, {"schemaType": "AVRO"}, 422, error(42201)),
    ("POST", USERS, avro(NAME, schemaType="XML"), 422, error(42201)),
    ("POST", USERS, avro(NAME, ruleSet={"domainRules": [{"name": "a"}]}), 422, error(42201)),
    ("POST", USERS, avro(NAME), 200, {"id": 1, "version": 1, "guid": ANY}),
    ("POST", USERS, avro(NAME.replace(",", ", ")), 200, {"id": 1, "version": 1, "guid": ANY}),
    ("POST", "/subjects/other/versions", avro(NAME), 200, {"id": 1, "version": 1, "guid": ANY}),
    ("POST", "/subjects/a%2Fb/versions", avro('{"type": "string"}'), 200, {"id": 2, "version": 1, "guid": ANY}),
    ("GET", "/subjects/a%2Fb/versions/1/schema", None, 200, '"string"'),
    ("GET", "/subjects", None, 200, ["a/b", "other", "users"]),
    ("GET", "/subjects?subjectPrefix=u", None, 200, ["users"]),
    ("GET", "/subjects?offset=1&limit=1", None, 200, ["other"]),
    ("GET", USERS, None, 200, [1]),
    ("GET", LATEST, None, 200, {"subject": "users", "version": 1, "id": 1, "guid": ANY, "schema": NAME}),
    ("GET", "/subjects/users/versions/-1", None, 200, {"subject": "users", "version": 1, "id": 1, "guid": ANY, "schema": NAME}),
    ("GET", f"{USERS}/2", None, 404, error(40402, "Version 2 not found.")),
    ("GET", f"{USERS}/0", None, 422, error(42202)),
    ("GET", f"{USERS}/earliest", None, 422, error(42202)),
    ("GET", f"{USERS}/{'9' * 5_000}", None, 422, error(42202)),
    ("GET", f"/schemas/ids/{'9' * 5_000}", None, 404, error(404)),
    ("GET", "/subjects?offset=-1", None, 200, ["a/b", "other", "users"]),
    ("GET", "/schemas/ids/1", None, 200, {"guid": ANY, "schema": NAME}),
    ("GET", "/schemas/ids/1?fetchMaxId=true", None, 200, {"guid": ANY, "schema": NAME, "maxId": 2}),
    ("GET", "/schemas/ids/1/subjects", None, 200, ["other", "users"]),
    ("GET", "/schemas/ids/1/versions", None, 200, [{"subject": "other", "version": 1}, {"subject": "users", "version": 1}]),
    ("POST", "/subjects/users", avro(NAME), 200, {"subject": "users", "version": 1, "id": 1, "guid": ANY, "schema": NAME}),
    ("POST", "/subjects/users", avro(WITH_DEFAULT), 404, error(40403, "Schema not found")),
    ("POST", "/subjects/nobody", avro(NAME), 404, error(40401, "Subject 'nobody' not found.")),
    ("POST", f"{CHECK}/latest", avro(WITH_DEFAULT), 200, {"is_compatible": True}),
    ("POST", f"{CHECK}/latest", avro(WITHOUT_DEFAULT), 200, {"is_compatible": False}),
    ("POST", f"{CHECK}/latest?verbose=true", avro(WITHOUT_DEFAULT), 200, {"is_compatible": False, "messages": ANY}),
    ("POST", f"{CHECK}/7", avro(NAME), 404, error(40402, "Version 7 not found.")),
    ("POST", CHECK, avro(WITH_DEFAULT), 200, {"is_compatible": True}),
    ("POST", "/compatibility/subjects/nobody/versions", avro(NAME), 200, {"is_compatible": True}),
    ("POST", USERS, avro(WITHOUT_DEFAULT), 409, error(409)),
    ("POST", USERS, avro('{"type":"object"}', schemaType="JSON"), 409, error(409)),
    ("POST", USERS, avro(WITH_DEFAULT), 200, {"id": 3, "version": 2, "guid": ANY}),
    ("GET", "/config/users", None, 404, error(40408, "Subject 'users' does not have subject-level compatibility configured")),
    ("GET", "/config/users?defaultToGlobal=true", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("PUT", "/config/users", {"compatibility": "LOUD"}, 422, error(42203)),
    ("PUT", "/config/users", {"compatibility": "none"}, 200, {"compatibility": "NONE"}),
    ("GET", "/config/users", None, 200, {"compatibilityLevel": "NONE"}),
    ("POST", USERS, avro(WITHOUT_DEFAULT), 200, {"id": 4, "version": 3, "guid": ANY}),
    ("DELETE", "/config/users", None, 200, {"compatibilityLevel": "NONE"}),
    ("DELETE", "/config/users", None, 404, error(40401)),
    ("PUT", "/mode/users", {"mode": "LOUD"}, 422, error(42204)),
    ("GET", "/mode/users", None, 404, error(40409, "Subject 'users' does not have subject-level mode configured")),
    ("PUT", "/mode/users", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", USERS, avro('"int"'), 422, error(42205)),
    ("POST", USERS, avro(NAME), 200, {"id": 1, "version": 1, "guid": ANY}),  # what is there needs no writing
    ("DELETE", "/subjects/users", None, 422, error(42205)),
    ("DELETE", "/mode/users", None, 200, {"mode": "READONLY"}),
    ("POST", USERS, avro(NAME, id=9), 422, error(42207, "Schema already registered with id 1 instead of input id 9")),
    ("POST", USERS, avro('"bytes"', id=9), 422, error(42205)),
    ("PUT", "/mode", {"mode": "IMPORT"}, 422, error(42205)),
    ("PUT", "/mode/imported", {"mode": "IMPORT"}, 200, {"mode": "IMPORT"}),
    ("POST", "/subjects/imported/versions", avro(NAME, id=3, version=8), 422, error(42205)),
    ("POST", "/subjects/imported/versions", avro('"long"', id=90, version=8), 200, {"id": 90, "version": 8, "guid": ANY}),
    ("POST", "/subjects/next/versions", avro('"float"'), 200, {"id": 91, "version": 1, "guid": ANY}),
    ("DELETE", f"{USERS}/3", None, 200, 3),
    ("DELETE", f"{USERS}/3", None, 404, error(40406)),
    ("GET", USERS, None, 200, [1, 2]),
    ("GET", f"{USERS}?deleted=true", None, 200, [1, 2, 3]),
    ("GET", f"{USERS}?deletedOnly=true", None, 200, [3]),
    ("GET", f"{USERS}/3", None, 404, error(40402, "Version 3 not found.")),
    ("GET", f"{USERS}/3?deleted=true", None, 200, {"subject": "users", "version": 3, "id": 4, "guid": ANY, "schema": WITHOUT_DEFAULT}),
    ("GET", "/schemas/ids/4/schema", None, 200, ANY),
    ("DELETE", f"{USERS}/2?permanent=true", None, 404, error(40407)),
    ("DELETE", "/subjects/users?permanent=true", None, 404, error(40405)),
    ("DELETE", f"{USERS}/3?permanent=true", None, 200, 3),
    ("GET", "/schemas/ids/4", None, 404, error(40403, "Schema 4 not found")),
    ("DELETE", "/subjects/users", None, 200, [1, 2]),
    ("DELETE", "/subjects/users", None, 404, error(40404)),
    ("GET", USERS, None, 404, error(40401)),
    ("GET", "/subjects?deleted=true&subjectPrefix=users", None, 200, ["users"]),
    ("GET", "/schemas/ids/3", None, 200, {"guid": ANY, "schema": WITH_DEFAULT}),  # records of it may be there still
    ("POST", USERS, avro(NAME), 200, {"id": 1, "version": 3, "guid": ANY}),
    ("DELETE", "/subjects/users", None, 200, [3]),
    ("DELETE", "/subjects/users?permanent=true", None, 200, [1, 2, 3]),
    ("DELETE", "/subjects/users?permanent=true", None, 404, error(40401)),
    ("POST", "/subjects/new/versions", avro(WITH_DEFAULT), 200, {"id": 92, "version": 1, "guid": ANY}),
    ("POST", "/subjects/m/versions", avro('"bytes"', metadata={"properties": {"owner": "a"}}), 200, {"id": 93, "version": 1, "guid": ANY}),
    ("POST", "/subjects/m/versions", avro('"bytes"', metadata={"properties": {"owner": "b"}}), 200, {"id": 94, "version": 2, "guid": ANY}),
    ("GET", "/subjects/m/metadata?key=owner&value=a", None, 200, {"subject": "m", "version": 1, "id": 93, "guid": ANY, "metadata": {"properties": {"owner": "a"}}, "schema": '"bytes"'}),
    ("GET", "/subjects/m/metadata?key=owner&value=c", None, 404, error(40403)),
    ("DELETE", "/subjects/m/versions/latest", None, 200, 2),
    ("DELETE", "/subjects/m/versions/latest", None, 200, 1),
    ("DELETE", "/subjects/m/versions/latest", None, 404, error(40401)),
    ("POST", "/subjects/%20/versions", avro(NAME), 422, error(42208)),
    ("PUT", "/config", {"compatibility": "FULL_TRANSITIVE"}, 200, {"compatibility": "FULL_TRANSITIVE"}),
    ("GET", "/config/new?defaultToGlobal=true", None, 200, {"compatibilityLevel": "FULL_TRANSITIVE"}),
    ("PUT", "/config", {"compatibility": "FULL", "defaultRuleSet": {"domainRules": []}}, 422, error(42205)),
    ("POST", "/subjects/big/versions", avro(QUOTES, schemaType="JSON"), 422, error(42209)),
    ("POST", "/subjects/big/versions", avro(f'{{"type":"fixed","name":"A","size":1,"doc":"{"x" * 800_000}"}}'), 422, error(42209)),
)  # fmt: skip


def is_answer(expected: Any, answer: Any) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(answer, dict)
            and expected.keys() == answer.keys()
            and all(map(is_answer, expected.values(), [answer[name] for name in expected]))
        )
    return expected is ANY or expected == answer


def test_answers_are_those_of_confluents_registry() -> None:
    client = listed_registry()
    wrong = []
    for method, path, body, status, expected in ANSWERS:
        answer = client.request(method, path, json=body, headers={"Content-Type": "application/vnd.schemaregistry.v1+json"})
        shown = answer.text if path.endswith("/schema") else answer.json()
        if (answer.status_code, is_answer(expected, shown)) != (status, True):
            wrong.append((method, path, body, answer.status_code, shown))
    assert wrong == []


def test_a_restart_changes_no_answer() -> None:
    store = ListedStore()
    client = listed_registry(store)
    for method, path, body, _, _ in ANSWERS:
        client.request(method, path, json=body)
    again = listed_registry(ListedStore(store.records))
    for path in ("/schemas?deleted=true", "/subjects?deleted=true", "/config", "/mode/imported"):
        assert client.get(path).json() == again.get(path).json()


# The members of keys, in their order, and of values, as Confluent's registry 7 has them: it refuses a value with others.
KEYS = {
    "SCHEMA": ["keytype", "subject", "version", "magic"],
    **{kind: ["keytype", "subject", "magic"] for kind in ("CONFIG", "MODE", "DELETE_SUBJECT")},
    "NOOP": ["keytype", "magic"],
}
REFERENCE = {"name": str, "subject": str, "version": int}
VALUES: dict[str, tuple[dict[str, type], dict[str, type]]] = {  # those that have to be there, and others
    "SCHEMA": ({"subject": str, "version": int, "id": int, "schema": str, "deleted": bool}, {"schemaType": str, "references": list, "metadata": dict}),
    "CONFIG": ({"compatibilityLevel": str}, {"subject": str}),
    "MODE": ({"mode": str}, {"subject": str}),
    "DELETE_SUBJECT": ({"subject": str, "version": int}, {}),
}  # fmt: skip


def wrong_members(members: dict[str, Any], required: dict[str, type], others: dict[str, type]) -> list[str]:
    kinds = required | others
    return [name for name in required if name not in members] + [
        name for name, value in members.items() if not isinstance(value, kinds.get(name, type(None)))
    ]


def test_confluents_registry_can_read_each_record_that_this_one_writes() -> None:
    """It also leaves out a schema whose id another text has already; what a NOOP says besides it does not look at."""
    store = ListedStore()
    client = listed_registry(store)
    texts, kinds = dict[int, str](), Counter[str]()
    for method, path, body, _, _ in ANSWERS:
        client.request(method, path, json=body)
    client.post("/subjects/inner/versions", json=avro('{"type":"object"}', schemaType="JSON"))
    referring = {"references": [{"name": "inner", "subject": "inner", "version": 1}], "schemaType": "JSON"}
    assert client.post("/subjects/refers/versions", json=avro('{"$ref":"inner"}', **referring)).status_code == 200
    for key, value in store.records:
        named, members = json.loads(key), json.loads(value or b"{}")
        kind = named["keytype"]
        kinds[kind] += 1
        assert (list(named), named["magic"]) == (KEYS[kind], int(kind == "SCHEMA"))
        assert key == json.dumps(named, separators=(",", ":")).encode()
        if value is not None and kind != "NOOP":
            assert wrong_members(members, *VALUES[kind]) == [], value
            assert members.get("subject", named["subject"]) == named["subject"]
        if kind == "SCHEMA" and value is not None:
            assert members.get("schemaType") in (None, "JSON", "PROTOBUF")
            assert [wrong_members(reference, REFERENCE, {}) for reference in members.get("references", [])] in ([], [[]])
            assert texts.setdefault(members["id"], members["schema"]) == members["schema"]
    assert kinds.keys() == KEYS.keys()


THEIRS: list[tuple[str, str | None]] = [
    ('{"keytype":"NOOP","magic":0}', None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    ('{"keytype":"SCHEMA","subject":"users","version":1,"magic":1}', '{"subject":"users","version":1,"id":1,"schema":"\\"string\\"","deleted":false}'),
    ('{"keytype":"SCHEMA","subject":"users","version":2,"magic":1}', '{"subject":"users","version":2,"id":2,"md5":"X03MO1qnZdYdgyfeuILPmQ==","schema":"[\\"string\\",\\"int\\"]","schemaTags":[],"deleted":false}'),
    ('{"keytype":"SCHEMA","subject":"places","version":1,"magic":0}', '{"subject":"places","version":1,"id":3,"schemaType":"JSON","references":[],"metadata":null,"ruleSet":null,"schema":"{\\"type\\":\\"object\\"}","deleted":false}'),
    ('{"keytype":"CONFIG","subject":"users","magic":0}', '{"subject":"users","compatibilityLevel":"NONE"}'),
    ('{"keytype":"CONFIG","subject":"places","magic":0}', '{"compatibilityLevel":"BACKWARD"}'),
    ('{"keytype":"CONFIG","subject":"places","magic":0}', None),
    ('{"keytype":"MODE","subject":null,"magic":0}', '{"mode":"READWRITE"}'),
    ('{"keytype":"MODE","subject":"places","magic":0}', '{"subject":"places","mode":"READONLY"}'),
    ('{"keytype":"SCHEMA","subject":"old","version":1,"magic":1}', '{"subject":"old","version":1,"id":1,"schema":"\\"string\\"","deleted":false}'),
    ('{"keytype":"SCHEMA","subject":"old","version":2,"magic":1}', '{"subject":"old","version":2,"id":7,"schema":"\\"long\\"","deleted":false}'),
    ('{"keytype":"SCHEMA","subject":"old","version":1,"magic":1}', '{"subject":"old","version":1,"id":1,"schema":"\\"string\\"","deleted":true}'),
    ('{"keytype":"DELETE_SUBJECT","subject":"old","magic":0}', '{"subject":"old","version":2}'),
    ('{"keytype":"SCHEMA","subject":"gone","version":1,"magic":1}', '{"subject":"gone","version":1,"id":8,"schema":"\\"double\\"","deleted":false}'),
    ('{"keytype":"CLEAR_SUBJECT","subject":"gone","magic":0}', '{"subject":"gone"}'),
    ('{"magic":1,"keytype":"SCHEMA","version":1,"subject":"other order"}', '{"deleted":false,"schema":"\\"int\\"","id":9,"version":1,"subject":"other order"}'),
]  # fmt: skip
CONTINUED: tuple[tuple[str, Any], ...] = (
    ("/subjects", ["other order", "places", "users"]),
    ("/subjects?deleted=true", ["old", "other order", "places", "users"]),
    ("/subjects/users/versions", [1, 2]),
    ("/subjects/old/versions?deleted=true", [1, 2]),
    ("/schemas/ids/2", {"guid": ANY, "schema": '["string","int"]'}),
    ("/schemas/ids/3", {"guid": ANY, "schemaType": "JSON", "schema": '{"type":"object"}'}),
    ("/schemas/ids/7", {"guid": ANY, "schema": '"long"'}),
    ("/schemas/ids/8", error(40403)),
    ("/config", {"compatibilityLevel": "FULL"}),
    ("/config/users", {"compatibilityLevel": "NONE"}),
    ("/config/places", error(40408)),
    ("/mode/places", {"mode": "READONLY"}),
)


def test_what_confluents_registry_has_written_is_continued() -> None:
    store = ListedStore([(key.encode(), None if value is None else value.encode()) for key, value in THEIRS])
    client = listed_registry(store)
    answers = [(path, client.get(path).json(), expected) for path, expected in CONTINUED]
    assert [(path, answer) for path, answer, expected in answers if not is_answer(expected, answer)] == []
    registered = client.post("/subjects/users/versions", json=avro('"bytes"')).json()
    assert is_answer({"id": 10, "version": 3, "guid": ANY}, registered)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_page_of_a_website_cannot_send_a_body_unasked(kind: str) -> None:
    answer = listed_registry().post(USERS, content='{"schema":"\\"int\\""}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error_code"]) == (415, 415)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        "null",
        '{"schema":"\\ud800"}',
        '{"schema":"\\"\\\\ud800\\""}',
        '{"schema":5,"references":7}',
        '{"schema":"\\"int\\"","references":[{"name":"a"}]}',
        '{"schema":"\\"int\\"","references":[{"name":"a","subject":"b","version":Infinity}]}',
        '{"schema":"\\"int\\"","id":Infinity}',
        '{"schema":"\\"int\\"","id":2147483648}',
        '{"schema":"\\"int\\"","version":-2}',
        '{"schema":"\\"int\\"","metadata":[1]}',
        '{"schema":"\\"int\\"","metadata":{"properties":[1]}}',
    ],
)
def test_a_bad_body_is_refused_with_a_sentence(body: str) -> None:
    answer = listed_registry().post(USERS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["message"]


@pytest.mark.parametrize("levels", [201, 900, 5_000])
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_schema_that_is_nested_too_deeply_is_refused(kind: str, levels: int) -> None:
    text = '{"type":"array","items":' * levels + '"int"' + "}" * levels
    answer = listed_registry().post(USERS, json=avro(text, schemaType=kind))
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1:8081", 200), ("localhost", 200), ("[::1]:8081", 200), ("evil.example", 400), ("", 400)]
)
def test_on_loopback_it_answers_to_no_name_that_a_website_could_have(host: str, status: int) -> None:
    assert listed_registry(hosts=NAMES_OF_LOOPBACK).get("/subjects", headers={"Host": host}).status_code == status


class ListedLogins(RegistryLogins):
    """Logins whose broker is a table; `asked_times` counts the questions."""

    def __init__(self, rights: Mapping[str, RegistryRights], clock: ManualClock) -> None:
        super().__init__({}, "_schemas", clock=clock.monotonic)
        self._rights, self.asked_times = rights, 0

    def _ask(self, user: str, password: str) -> RegistryRights:
        self.asked_times += 1
        return self._rights.get(f"{user}:{password}", RegistryRights(refusal="name or password is wrong"))


def test_who_may_only_read_registers_nothing_and_strangers_see_nothing() -> None:
    rights = {"reader:r": RegistryRights(operations=frozenset({"Read"})), "nobody:n": RegistryRights()}
    logins = ListedLogins(rights, ManualClock())
    client = listed_registry(logins=logins)
    statuses = {}
    for user in (None, ("reader", "wrong"), ("nobody", "n"), ("reader", "r")):
        answers = client.get("/subjects", auth=user), client.post(USERS, json=avro(NAME), auth=user)
        statuses[user] = [answer.status_code for answer in answers]
    assert statuses == {
        None: [401, 401],
        ("reader", "wrong"): [401, 401],
        ("nobody", "n"): [403, 403],
        ("reader", "r"): [200, 403],
    }
    assert logins.asked_times == 3
    assert client.get("/subjects").headers["WWW-Authenticate"].startswith("Basic")
    assert client.get("/healthz").status_code == 200


def test_a_login_is_refused_while_too_many_others_are_being_asked_for() -> None:
    logins = ListedLogins({"reader:r": RegistryRights(operations=frozenset({"Read"}))}, ManualClock())
    logins.answer_seconds_max = 0.0
    for _ in range(ASKED_AT_ONCE_MAX):
        assert logins.asking.acquire(blocking=False)
    refused = listed_registry(logins=logins).get("/subjects", auth=("reader", "r"))
    assert (refused.status_code, "try again" in refused.json()["message"]) == (503, True)
    logins.asking.release()
    assert listed_registry(logins=logins).get("/subjects", auth=("reader", "r")).status_code == 200


def test_imported_versions_that_refer_to_each_other_or_too_deeply_are_refused_with_a_sentence() -> None:
    client = listed_registry()
    client.put("/mode", json={"mode": "IMPORT"})

    def imported(name: str, number: int, *others: tuple[str, int]) -> Any:
        references = [{"name": f"{other}.json", "subject": other, "version": version} for other, version in others]
        body = avro(f'{{"title":"{name}{number}"}}', schemaType="JSON", id=number, version=number, references=references)
        return client.post(f"/subjects/{name}/versions", json=body)

    assert imported("a", 1).status_code == imported("b", 2, ("a", 1)).status_code == 200
    client.delete("/subjects/b")
    client.delete("/subjects/a/versions/1")
    body = avro(
        '{"title":"again"}', schemaType="JSON", id=3, version=1, references=[{"name": "b.json", "subject": "b", "version": 2}]
    )
    assert client.post("/subjects/a/versions", json=body).status_code == 200
    assert client.post("/compatibility/subjects/a/versions", json=body).status_code == 200
    names = [f"c{number}" for number in range(REFERENCES_DEPTH_MAX + 2)]
    statuses = [imported(name, 10 + at, *([(names[at - 1], 9 + at)] if at else [])).status_code for at, name in enumerate(names)]
    assert statuses == [200] * (REFERENCES_DEPTH_MAX + 1) + [422]


def test_what_a_user_may_is_asked_again_after_a_minute() -> None:
    clock = ManualClock()
    logins = ListedLogins({"reader:r": RegistryRights(operations=frozenset({"Read"}))}, clock)
    client = listed_registry(logins=logins)
    for seconds in (0, 30, 31):
        clock.advance_ms(1000 * seconds)
        assert client.get("/subjects", auth=("reader", "r")).status_code == 200
    assert logins.asked_times == 2


@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--login"]])
def test_beyond_loopback_it_starts_only_with_logins_and_tls(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["registry", "serve", "--port", "0", *words])
    assert result.exit_code == ExitCode.FAILED
    assert "--login and --certificate" in result.output


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = CliRunner().invoke(main, ["registry", "serve", "--port", str(port)])
    assert f"port {port} of 127.0.0.1 is in use" in result.output


class StoreWithoutBroker(ListedStore):
    """Its broker does not answer."""

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Entry]], None]]:
        raise BrokerUnavailable("the broker at HOST:9092 did not answer: check that it runs")
        yield


def test_without_the_broker_changes_fail_with_the_reason_and_look_ups_are_answered() -> None:
    store = StoreWithoutBroker()
    client = listed_registry(store)
    answer = client.post(USERS, json=avro(NAME))
    assert (answer.status_code, answer.json()) == (
        500,
        error(50001, "the broker at HOST:9092 did not answer: check that it runs"),
    )
    assert client.get("/subjects").json() == []
