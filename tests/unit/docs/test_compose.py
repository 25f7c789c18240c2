"""docker-compose.airflow.yml, as far as it can be checked without containers."""

from __future__ import annotations

import base64
import re
import stat
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import processes
from tests.support.compose import FILE, OWN_IMAGE, PROJECT, VARIABLE, load_compose, services, write_secrets

COMPOSE = load_compose()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PINNED = r"[\w./-]+:v?\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}"
SECRET_NAMES = re.compile(r"PASSWORD$|SECRET|_KEY$|SQL_ALCHEMY_CONN|WAREHOUSE_URL|POSTGRES_URL")


def test_the_compose_specifications_schema_takes_it() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    result = processes.run(command, seconds_max=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_says_whether_it_is_well_and_takes_neither_all_memory_nor_the_disk(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(PINNED, service["image"]) or service["image"].startswith(OWN_IMAGE)
    assert "healthcheck" in service or service["restart"] == "no"
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_is_there_and_can_happen(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how.get("required", True) != ("profiles" in SERVICES[other]), f"{other} is not there in another profile"
        wanted = {
            "service_healthy": "healthcheck" in SERVICES[other],
            "service_completed_successfully": SERVICES[other]["restart"] == "no",
        }
        assert wanted[how["condition"]], f"{name} waits for {other}"


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_and_mounted_directories_are_there(name: str) -> None:
    for source, target, *mode in (volume.split(":") for volume in SERVICES[name].get("volumes", [])):
        assert target.startswith("/")
        if source.startswith("./"):
            assert (PROJECT / source).is_dir()
            assert mode == ["ro"], "a container changes nothing of the checkout"
        else:
            assert source in COMPOSE["volumes"]


def test_no_program_can_read_what_another_one_logs_in_to_the_broker_with() -> None:
    """Who mounts a volume of `security`, and how; only `security` has the authority and may write."""
    mounts = {
        (name, *volume.split(":"))
        for name, service in SERVICES.items()
        for volume in service.get("volumes", [])
        if "secured" in volume.split(":")[0] and name != "security"
    }
    shared = "/var/lib/secured/shared"
    owners = {
        "broker": [name for name in SERVICES if name.startswith("broker")],
        "admin": ["provisioner"],
        "exporter": ["exporter"],
        "registry": ["registry"],
    }
    owners["airflow"] = [name for name in SERVICES if name.startswith("airflow-")]
    assert mounts == {
        (owner, f"secured-{folder}", f"{shared}/{folder}", "ro") for folder, names in owners.items() for owner in names
    }
    assert "allow.unauthenticated" not in FILE.read_text().replace("logbus.metrics.allow.unauthenticated", "")


def test_ports_are_published_on_loopback_only_and_once() -> None:
    for profile in ("single", "cluster"):
        published = [port for service in services(profile=profile).values() for port in service.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in published)
        assert len(set(published)) == len(published)


def test_no_secret_is_in_the_file_and_no_password_on_a_command_line() -> None:
    for name, service in SERVICES.items():
        assert not VARIABLE.search(str(service.get("command", ""))), name
        for variable, value in service.get("environment", {}).items():
            if SECRET_NAMES.search(variable):
                assert VARIABLE.search(value), f"{name}: {variable}"
    assert "ALL_ADMINS" not in FILE.read_text()
    assert not re.search(r"\$\{\w+(:?-[^}]*)?\}", FILE.read_text()), "a variable with a default, or none that says what to type"


def test_the_script_writes_every_variable_that_the_file_needs_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    secrets = write_secrets(path)
    mounted = {one["environment"] for one in COMPOSE["secrets"].values()}
    assert set(secrets) == {*VARIABLE.findall(FILE.read_text()), *mounted, "COMPOSE_PROFILES"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(base64.urlsafe_b64decode(secrets["LOGBUS_FERNET_KEY"])) == 32
    assert len(secrets["LOGBUS_JWT_SECRET"]) >= 64
    assert all(re.fullmatch(r"[0-9a-f]{24}", value) for name, value in secrets.items() if name.endswith("PASSWORD"))
    assert len(set(secrets.values())) == len(secrets)


def test_the_script_leaves_what_is_there_and_adds_what_is_missing(tmp_path: Path) -> None:
    """Otherwise the database, which keeps the password it was created with, would be locked out."""
    path = tmp_path / ".env"
    path.write_text("LOGBUS_POSTGRES_PASSWORD=mine\nOTHER=kept\n")
    first = write_secrets(path)
    assert first["LOGBUS_POSTGRES_PASSWORD"] == "mine"
    assert first["OTHER"] == "kept"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write_secrets(path) == first


def test_the_script_remembers_the_profile_that_was_given_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".env"
    assert write_secrets(path)["COMPOSE_PROFILES"] == "single"
    monkeypatch.setenv("PROFILE", "cluster")
    clustered = write_secrets(path)
    monkeypatch.delenv("PROFILE")
    assert write_secrets(path) == clustered
    assert clustered["COMPOSE_PROFILES"] == "cluster"


def test_the_image_takes_neither_secrets_nor_anything_else_that_git_ignores() -> None:
    ignored = [line.strip("/") for line in (PROJECT / ".gitignore").read_text().splitlines() if not line.startswith("#")]
    assert ".env" in ignored
    left_out = [line.removeprefix("**/") for line in (PROJECT / ".dockerignore").read_text().splitlines()]
    assert [name for name in ignored if not any(fnmatch(name, pattern) for pattern in left_out)] == []


def test_one_service_builds_the_image_and_none_looks_for_it_in_a_registry() -> None:
    """Several services building one tag run at the same time, and all but one fail: the tag "already exists"."""
    for profile, builder in (("single", "broker"), ("cluster", "broker-1")):
        assert [name for name, service in services(own=True, profile=profile).items() if "build" in service] == [builder]
    assert {service["pull_policy"] for service in services(own=True).values()} == {"never"}


def test_the_database_counts_as_there_once_it_answers_by_tcp() -> None:
    """While the image creates the databases, the server listens on its socket only, and no other container can reach it."""
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def megabytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


@pytest.mark.parametrize("name", ["spark-master", "spark-worker"])
def test_the_heaps_of_spark_leave_half_a_gigabyte_to_what_is_beside_them(name: str) -> None:
    service = SERVICES[name]
    command = service["command"]
    executors = megabytes(command[command.index("--memory") + 1]) if "--memory" in command else 0
    daemon = megabytes(service["environment"]["SPARK_DAEMON_MEMORY"])
    assert daemon + executors + 512 <= megabytes(service["mem_limit"])


def test_airflow_reads_every_dag_file_whatever_words_are_in_it() -> None:
    reads = SERVICES["airflow-dag-processor"]["environment"]
    assert reads["AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE"] == "False"


def test_alerts_go_to_the_address_of_the_env_file() -> None:
    scraper = yaml.safe_load((PROJECT / "docs" / "prometheus" / "prometheus.yml").read_text())
    (target,) = scraper["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target == "alertmanager:9093"
    service = SERVICES["alertmanager"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
    config = yaml.safe_load((PROJECT / mounts["/etc/alertmanager"] / "alertmanager.yml").read_text())
    receivers = {one["name"]: one for one in config["receivers"]}
    used = {config["route"]["receiver"], *(one["receiver"] for one in config["route"]["routes"])}
    assert used == set(receivers)
    (hook,) = receivers["webhook"]["webhook_configs"]
    assert hook["url_file"] == f"/run/secrets/{service['secrets'][0]}"
    alerts = yaml.safe_load((PROJECT / "docs" / "prometheus" / "alerts.yml").read_text())["groups"]
    known = {rule["alert"] for group in alerts for rule in group["rules"]}
    for rule in config["inhibit_rules"]:
        assert set(re.findall(r"[A-Z]\w+", " ".join([*rule["source_matchers"], *rule["target_matchers"]]))) <= known


def test_grafana_finds_the_dashboard_and_the_data_source() -> None:
    provisioning = PROJECT / "docker" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "logbus.yml").read_text())["providers"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in SERVICES["grafana"]["volumes"])
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    dashboards = PROJECT / mounts[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (dashboards / home.name).exists()


def test_prometheus_scrapes_services_that_are_there() -> None:
    config = yaml.safe_load((PROJECT / "docs" / "prometheus" / "prometheus.yml").read_text())
    for job in config["scrape_configs"]:
        if "static_configs" in job:
            host, _, port = job["static_configs"][0]["targets"][0].partition(":")
            assert port in str(SERVICES[host]["command"])
        else:
            (discovered,) = job["dns_sd_configs"]
            aliases = [name for name, service in SERVICES.items() if discovered["names"] == aliases_of(name, service)]
            assert len(aliases) == 4
            assert all(str(discovered["port"]) in str(SERVICES[name]["command"]) for name in aliases)


def aliases_of(name: str, service: dict[str, Any]) -> list[str]:
    """What others reach it by, besides its own name if there is such."""
    aliases: list[str] = service.get("networks", {}).get("default", {}).get("aliases", [name])
    return aliases


def test_the_image_is_made_of_files_that_are_there() -> None:
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()]
    assert copied
    assert all((PROJECT / name).exists() for name in copied)
    assert all(re.fullmatch(PINNED, image) for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert all("--require-hashes" in line for line in re.findall(r"pip install.*", dockerfile))
    assert all(
        re.search(r"--frozen (--only-group build|.*--no-build-isolation)", line) for line in re.findall(r"uv sync.*", dockerfile)
    )
    assert SERVICES["broker"]["build"] == {"context": ".", "dockerfile": "docker/Dockerfile"}
    made = dockerfile.split("mkdir -p ")[1].split("\n")[0].split()
    mounted = {
        volume.split(":")[1]
        for one in services(own=True).values()
        for volume in one.get("volumes", [])
        if not volume.startswith("./")
    }
    assert mounted <= set(made), "an empty volume takes over owner and mode of what is there"
