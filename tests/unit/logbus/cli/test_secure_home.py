"""What a secure home consists of. tests/e2e runs the whole platform over it."""

from __future__ import annotations

from pathlib import Path

from logbus.cli.local_brokers import LocalBrokers
from logbus.cli.secure_home import AIRFLOW, USERS, SecureHome
from logbus.kafka import client_config


def test_what_a_home_was_secured_with_stays_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    home = SecureHome(tmp_path)
    assert not home.is_there
    home.prepare("127.0.0.1:9092")
    first = {user: home.client_config(user) for user in USERS}
    assert len({settings["sasl.password"] for settings in first.values()}) == len(USERS)
    users = (tmp_path / "security" / "users").read_text().splitlines()
    assert users == [f"{user}={first[user]['sasl.password']}" for user in USERS]
    client_config.write(home.client_file(AIRFLOW), {**first[AIRFLOW], "sasl.password": "another"})
    again = SecureHome(tmp_path)
    assert again.is_there
    again.prepare("127.0.0.1:9093")
    expected = {user: settings | {"bootstrap.servers": "127.0.0.1:9093"} for user, settings in first.items()}
    expected[AIRFLOW]["sasl.password"] = "another"
    assert {user: again.client_config(user) for user in USERS} == expected
    open_files = [path.name for path in (tmp_path / "security").rglob("*") if path.stat().st_mode & 0o077]
    assert open_files == ["ca.pem"]


def test_brokers_listen_for_this_machine_unless_others_are_let_in(tmp_path: Path) -> None:
    def listeners(advertised_host: str | None, count: int) -> list[str]:
        home, ports = SecureHome(tmp_path, advertised_host=advertised_host), range(9092, 9092 + LocalBrokers.ports_needed(count))
        programs = LocalBrokers(tmp_path, count=count, environment={}, ports=ports, security=home).programs()
        return [word for program in programs for word in program.command if "listeners=" in word or word.startswith("inter.")]

    assert listeners(None, 1) == ["listeners=SASL_SSL://127.0.0.1:9092", "advertised.listeners=SASL_SSL://127.0.0.1:9092"]
    assert listeners("ten", 1) == ["listeners=SASL_SSL://0.0.0.0:9092", "advertised.listeners=SASL_SSL://ten:9092"]
    assert listeners("fd00::7", 1) == ["listeners=SASL_SSL://[::]:9092", "advertised.listeners=SASL_SSL://[fd00::7]:9092"]
    assert listeners(None, 2).count("inter.broker.listener.name=SASL_SSL") == 2


def test_each_program_gets_a_folder_with_what_it_needs_and_what_is_renewed(tmp_path: Path) -> None:
    home, shared, authority = SecureHome(tmp_path, names=["broker"]), tmp_path / "shared", tmp_path / "security" / "ca.pem"
    home.prepare("broker:9092")
    home.share(shared)
    alone, clustered = (shared / "broker" / f"{name}.properties" for name in ("broker", "cluster"))
    of_broker = [shared / "broker" / name for name in ("ca.pem", "server.pem", "users", "zookeeper")]
    of_registry = [shared / "registry" / name for name in ("ca.pem", "registry.pem")]
    files = {alone, clustered, *of_broker, *of_registry, *(shared / user / "client.properties" for user in USERS)}
    assert {path for path in shared.rglob("*") if path.is_file()} == files
    assert not [path for path in files if path.stat().st_mode & 0o077]
    settings = client_config.read_client_config(shared / AIRFLOW / "client.properties")
    assert (settings["sasl.username"], settings["ssl.ca.pem"]) == (AIRFLOW, authority.read_text())
    for settings_file, paths in ((alone, of_broker[:-1]), (clustered, of_broker)):
        named = [line.partition("=")[2] for line in settings_file.read_text().splitlines() if str(tmp_path) in line]
        assert sorted(named) == sorted(map(str, paths))

    before = {path: path.stat().st_ino for path in files}
    client_config.write(home.client_file(AIRFLOW), {**home.client_config(AIRFLOW), "sasl.password": "another"})
    (authority.parent / "server.pem").write_text("renewed")
    home.share(shared)
    changed = {path for path in files if path.stat().st_ino != before[path]}
    assert changed == {shared / AIRFLOW / "client.properties", shared / "broker" / "server.pem"}
    assert client_config.read_client_config(shared / AIRFLOW / "client.properties")["sasl.password"] == "another"


def test_a_user_that_a_home_of_an_earlier_version_has_not_is_added_and_the_others_keep_their_passwords(tmp_path: Path) -> None:
    home, path = SecureHome(tmp_path), tmp_path / "security" / "users"
    home.prepare("broker:9092")
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines if not line.startswith("registry=")))
    home.client_file("registry").unlink()
    home.prepare("broker:9092")
    assert [line for line in path.read_text().splitlines() if line in lines] == lines[:-1]
    assert [line.partition("=")[0] for line in path.read_text().splitlines()] == list(USERS)
    assert home.client_config("registry")["sasl.username"] == "registry"
