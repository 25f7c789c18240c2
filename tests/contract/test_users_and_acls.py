"""`logbus user`, `logbus acl` and `logbus connect --for`, on a secure home of ours and on an Apache Kafka: who may log in, who may do what, and why."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.cli.connect import FORMS
from logbus.cli.local_brokers import LocalBrokers
from logbus.cli.processes import ReservedPorts
from logbus.cli.secure_home import SecureHome
from logbus.errors import AccessDenied, UserError
from logbus.kafka import acls, client_config, users
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.kafka.users import OPERATIONS, ResourceKind, read_rights
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.web.registry_login import RegistryLogins, RegistryRights

from tests.support.pages import PROJECT, blocks
from tests.support.secured_kafka import SecuredKafka

TOPIC = "web.a"
Run = Callable[..., Result]


@pytest.fixture(scope="module", params=["logbus", "apache_kafka"])
def administrator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the cluster's administrator."""
    place = tmp_path_factory.mktemp("secure")
    if request.param == "apache_kafka":
        kafka: SecuredKafka = request.getfixturevalue("secured_kafka")
        client_config.write(place / "admin.properties", kafka.settings("SASL_SSL", "admin"))
        yield place / "admin.properties"
        return
    home = SecureHome(place)
    with ReservedPorts(1) as reserved:
        brokers = LocalBrokers(place, count=1, environment=os.environ, ports=reserved.numbers, security=home)
        brokers.start()
        yield home.client_file("admin")
        brokers.stop()


@pytest.fixture(scope="module")
def run(administrator: Path) -> Run:
    """As a command of the administrator's; it has to succeed."""
    environment = {"LOGBUS_CLIENT_CONFIG": str(administrator), "COLUMNS": "200"}

    def command(words: str, *, status: int = 0, typed: str | None = None) -> Result:
        result = CliRunner(env=environment).invoke(main, words.split(), input=typed, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    command(f"topic create {TOPIC} --partitions 1")
    return command


def logs_in(settings: dict[str, Any]) -> bool:
    client = Client.for_command(settings)
    return bool(client.ask(client.ask_cluster))


def test_a_user_is_added_logs_in_gets_another_password_and_is_removed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "eve.properties"
    run(f"user add eve --write {path}")
    assert path.stat().st_mode & 0o777 == 0o600
    first = client_config.read_client_config(path)
    wait_until(lambda: logs_in(first), what="eve's login", not_yet=AccessDenied)
    assert {"user": "eve", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]} in [
        {**user, "mechanisms": sorted(user["mechanisms"])} for user in json.loads(run("user ls -o json").stdout)
    ]
    assert "`logbus user passwd eve`" in run("user add eve", typed="x\n", status=1).stderr
    run("user passwd eve", typed="another\n")
    wait_until(lambda: logs_in(first | {"sasl.password": "another"}), what="eve's other password", not_yet=AccessDenied)
    with pytest.raises(
        AccessDenied, match="authentication with .* failed: .*Check sasl.mechanism, sasl.username and sasl.password"
    ):
        logs_in(first)
    assert "dry run" in run("user rm eve").stderr
    run("user rm eve --execute")
    gone = wait_until(lambda: "eve" not in run("user ls").stdout, what="eve to be gone")
    assert gone
    assert "there is no user 'eve'" in run("user rm eve", status=1).stderr


STORY = (
    "",
    f"--user ann --topic {TOPIC} read",
    "--user ann --topic web. --resource-pattern-type prefixed write alter-configs",
    f"--deny-principal User:ann --topic {TOPIC} read",
    "--deny-principal User:* --topic * describe-configs",  # to deny Describe would hide the rest
    "--user ann --topic * delete --host 203.0.113.7",
)


def test_what_is_explained_is_what_the_cluster_allows(run: Run, administrator: Path, tmp_path: Path) -> None:
    """After each further ACL, for each operation on the topic."""
    run(f"user add ann --write {tmp_path / 'ann'}")
    ann = client_config.read_client_config(tmp_path / "ann")
    wait_until(lambda: logs_in(ann), what="ann's login", not_yet=AccessDenied)

    rules, web = (
        acls.Acls(Client(client_config.read_client_config(administrator))),
        acls.Resource(kind=acls.KINDS["topic"], name=TOPIC),
    )

    def allowed() -> dict[str, bool]:
        (topic,) = [each for each in read_rights(Client(ann), [TOPIC]).resources if each.name == TOPIC]
        return {operation: topic.may(operation) is True for operation in OPERATIONS[ResourceKind.TOPIC]}

    def explained() -> dict[str, bool]:
        known, settings = rules.matching(), rules.settings()
        decisions = {
            name: acls.decide(known, "User:ann", "*", acls.OPERATIONS[name], web, settings)
            for name in OPERATIONS[ResourceKind.TOPIC]
        }
        return {name: decision.is_allowed for name, decision in decisions.items()}

    counts = []
    for rule in STORY:
        if rule:
            run(f"acl add {rule}")
        wait_until(lambda: explained() == allowed(), what=f"the cluster to know {rule}")
        counts.append(sum(explained().values()))
    assert counts == [0, 2, 5, 4, 3, 3]
    why = run(f"acl explain --user ann --topic {TOPIC} read")
    denied = f"DENY READ to User:ann from * on LITERAL TOPIC {TOPIC}"
    assert why.stdout == f"User:ann may not READ topic {TOPIC}: the ACL '{denied}' decides, and would have to be deleted\n"
    (mend,) = [line.partition("logbus ")[2] for line in why.stderr.splitlines() if line.startswith("to allow it: ")]
    assert run(mend).stdout == f"removed: {denied}\n"
    concerning = json.loads(run(f"acl ls --topic {TOPIC} -o json").stdout)
    assert [row for row in concerning if row["principal"] == "User:ann"] == json.loads(run("acl ls --user ann -o json").stdout)
    assert {"User:ann", "User:*"} <= {row["principal"] for row in concerning}
    assert "would be removed: ALLOW WRITE to User:ann" in run("acl rm --user ann").stdout
    run("acl rm --user ann --execute")
    run("acl rm --deny-principal User:* --execute")
    assert "no ACL is named so" in run("acl rm --user ann").stderr
    run("user rm ann --execute")


def test_what_connect_prints_connects_elsewhere(run: Run, administrator: Path, tmp_path: Path) -> None:
    settings = client_config.read_client_config(administrator)
    own = {name: value for name, value in settings.items() if not name.startswith("ssl.ca")}
    authority = Path(settings["ssl.ca.location"]).read_text()
    printed = {form: run(f"connect --for {form}").stdout for form in FORMS}
    for form in ("kcat", "java"):
        (tmp_path / form).write_text(printed[form])
    assert client_config.read_client_config(tmp_path / "kcat") == settings
    assert client_config.read_client_config(tmp_path / "java") == own | {"ssl.ca.pem": authority}
    assert json.loads(printed["airflow"])["kafka_default"]["extra"] == own | {"ssl.ca.pem": authority}
    names: dict[str, Any] = {}
    exec(printed["python"] + "\n" + printed["spark"], names)
    assert names["config"] == own | {"ssl.ca.pem": authority}
    assert (
        client_config.translated({name.removeprefix("kafka."): value for name, value in names["options"].items()})
        == names["config"]
    )
    # Debian's kcat has an old librdkafka, whose SCRAM only our broker understands.
    of_kafka = [] if "security" in administrator.parts else ["-X", "sasl.mechanism=PLAIN"]
    listed = subprocess.run(
        ["kcat", "-F", tmp_path / "kcat", *of_kafka, "-L"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert f'topic "{TOPIC}"' in listed.stdout, listed.stderr
    assert TOPIC in Client(names["config"]).metadata().topics


COMMANDS = ("topic ls", "user ls", "acl ls", "cluster", f"consume {TOPIC}", f"produce {TOPIC}", f"ship one.log --topic {TOPIC}")


def test_a_wrong_password_is_named_by_every_command(administrator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = client_config.read_client_config(administrator)
    Path("one.log").write_text("2015-05-17T10:00:00Z hello\n")
    sentence = (
        f"authentication with the broker at {settings['bootstrap.servers']} failed: .*Check sasl.mechanism, sasl.username and"
    )
    for number, command in enumerate(COMMANDS):
        # Each as another user: our broker takes its time with one who fails again and again.
        client_config.write(Path("wrong"), settings | {"sasl.username": f"nobody{number}", "sasl.password": "wrong"})
        result = CliRunner().invoke(main, [*command.split(), "--client-config", "wrong"], input="one\n")
        shown = " ".join(result.stderr.split())
        assert (result.exit_code, bool(re.search(sentence, shown))) == (1, True), (command, shown)


def test_the_ten_lines_of_the_page_work_one_after_the_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those that start and name the brokers."""
    monkeypatch.chdir(tmp_path)
    (lines,) = [block.text.splitlines() for block in blocks(PROJECT / "docs" / "security.md") if block.mark == "ten lines"]
    commands = [part for line in lines for part in re.sub(r"\s+#.*", "", line).split(" && ")]
    assert (len(lines), [command.split()[:2] for command in commands[:2]]) == (
        10,
        [["logbus", "up"], ["source", ".logbus/up/env"]],
    )
    for command in commands[2:]:
        words, _, path = command.removeprefix("logbus ").partition(" > ")
        printed = run(words).stdout
        if path:
            assert "'sasl.username': 'ann'" in printed
        elif words.startswith("user add"):
            ann = client_config.read_client_config(tmp_path / "ann.properties")
            wait_until(partial(logs_in, ann), what="ann's login", not_yet=AccessDenied)


def test_a_user_with_no_acl_is_told_which_one_it_needs(run: Run, tmp_path: Path) -> None:
    run(f"user add bob --write {tmp_path / 'bob'}")
    bob = Client(client_config.read_client_config(tmp_path / "bob"))
    refused = "this user lacks Describe on topic web.a: grant it, .*--allow-principal User:bob --operation Describe --topic web.a"
    wait_until(lambda: logs_in(dict(bob.config)), what="bob's login", not_yet=AccessDenied)
    with pytest.raises(AccessDenied, match=refused):
        Topics(bob).topic(TOPIC)


def test_readers_of_ranges_are_made_where_ranges_are_known_and_nothing_is_left_where_they_are_not(
    run: Run, administrator: Path, request: pytest.FixtureRequest
) -> None:
    client = Client.for_command(client_config.read_client_config(administrator))
    readers, owned = users.RangeReaders(client), ("admin/load", "SCRAM-SHA-256")
    ranges = [acls.AclRange(TOPIC, 0, 0, 5), acls.AclRange(TOPIC, 0, 7, 9)]
    if request.node.callspec.params["administrator"] == "apache_kafka":
        with pytest.raises(UserError, match="no ACLs for ranges"):
            readers.add(owned[0], "password", owned[1], ranges)
    else:
        readers.add(owned[0], "password", owned[1], ranges)
        listed = json.loads(run(f"acl ls --user {owned[0]} --topic {TOPIC} -o json").stdout)
        assert [rule["name"] for rule in listed] == [f"{TOPIC}:0:0-5", f"{TOPIC}:0:7-9"]
        explained = run(f"acl explain --user {owned[0]} --topic {TOPIC} read").stdout
        assert f"may not READ topic {TOPIC}: its ACLs allow only {TOPIC}:0:0-5, {TOPIC}:0:7-9" in explained
        assert owned[0] in run("user ls").stdout
    for _ in range(2):
        readers.delete(*owned)
        assert json.loads(run(f"acl ls --user {owned[0]} -o json").stdout) == []
        assert owned[0] not in run("user ls").stdout


def test_the_schema_registry_lets_users_in_by_their_passwords_and_acls(administrator: Path, run: Run, tmp_path: Path) -> None:
    run("topic create schemas --partitions 1")
    for name in ("rita", "nina"):
        run(f"user add {name} --write {tmp_path / name}")
    run("acl add --user rita --topic schemas read")
    passwords = {name: client_config.read_client_config(tmp_path / name)["sasl.password"] for name in ("rita", "nina")}

    def rights(user: str, password: str) -> RegistryRights:
        logins = RegistryLogins(client_config.read_client_config(administrator), "schemas")
        return logins.rights(f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}")

    wait_until(lambda: rights("rita", passwords["rita"]).operations == {"Read", "Describe"}, what="the ACL")
    assert rights("nina", passwords["nina"]) == RegistryRights()
    for user, password in (("rita", passwords["nina"]), ("nobody", "x")):
        assert "cannot log in" in rights(user, password).refusal
    assert rights("rita", "").refusal
