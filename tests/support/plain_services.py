"""Services of docker-compose.airflow.yml as plain processes, with the file's commands, environments and health checks.

What a container would provide is replaced: host names become 127.0.0.1, ports become free ports of this machine, the image's
directories become ours, and its environment is read from the Dockerfile. PostgreSQL is the embedded server with the same
settings, reached by its socket.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from logbus.cli.processes import Program, SupervisedProcess, Supervisor
from logbus.loads.embedded import EmbeddedPostgres
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.processes import free_port
from tests.support.compose import PROJECT, filled, services, write_secrets

HERE = "127.0.0.1"
DOCKERFILE = PROJECT / "docker" / "Dockerfile"
OWN_HOSTS = ("localhost", "0.0.0.0", HERE)
SEVERAL = ("broker", "zookeeper")  # NAME-1, NAME-2 ...
PORTS = ("7077", "8080", "8081", "8082", "8085", "8974", "9092", "9308", "9404", "29092")


class PlainServices:
    """The services of a profile in a directory; a context manager that stops all that were started. What each of several services
    of one kind has for itself, a port or a directory, it has here too."""

    def __init__(self, directory: Path, profile: str = "single") -> None:
        directory.mkdir()
        self.directory = directory
        self.names = list(services(own=True, profile=profile))
        self.secrets = write_secrets(directory / ".env")
        self.ports = {port: str(free_port()) for port in PORTS}
        self._services = services()
        self.begun: dict[str, SupervisedProcess] = {}
        self._ports_of: dict[tuple[str, str], str] = {}
        self._supervisor = Supervisor()
        self._postgres: EmbeddedPostgres | None = None
        self._paths = {
            "/opt/airflow": str(directory / "airflow"),
            "/opt/logbus": str(PROJECT),
            "/opt/venv/bin": str(Path(sys.executable).parent),
            "/var/lib/secured": str(directory / "secured"),
            "/var/lib/spark": str(directory / "spark"),
        }
        for path in ("airflow/logs", "airflow/auth", "spark"):
            (directory / path).mkdir(parents=True)

    def __enter__(self) -> PlainServices:
        return self

    def __exit__(self, *error: object) -> None:
        self._supervisor.end()
        if self._postgres is not None:
            self._postgres.stop()

    def url(self, port: str, path: str = "") -> str:
        """The URL of the service that has this port in the file."""
        return f"http://{HERE}:{self.ports[port]}{path}"

    def start_postgres(self) -> None:
        service = self._services["postgres"]
        command, flags = service["command"][0], service["command"][1:]
        assert command == "postgres"
        settings = dict(pair.split("=") for flag, pair in zip(flags[::2], flags[1::2], strict=True) if flag == "-c")
        self._postgres = EmbeddedPostgres(self.directory / "postgres", settings={**settings, "fsync": "off"}).start()
        self._postgres.create_database(service["environment"]["POSTGRES_DB"])

    def start(self, name: str) -> SupervisedProcess:
        """Starts the service without waiting for it."""
        self.begun[name] = self._supervisor.start(self._program(name))
        return self.begun[name]

    def run(self, name: str) -> str:
        """Runs a service to its end; returns its output."""
        program = self._program(name)
        self._supervisor.run(program, PATIENCE_SECONDS)
        return program.log_path.read_text()

    def wait_until_healthy(self, name: str, process: SupervisedProcess) -> None:
        """Waits until the service's health check from the file succeeds."""
        # Each look is a process: many a second would keep the service from starting.
        wait_until(lambda: self.health(name).returncode == 0, what=name, poll_seconds=2.0, processes=[process])

    def health(self, name: str) -> subprocess.CompletedProcess[str]:
        kind, *command = self._services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(
            self.words(command, name),
            env=self.environment(name),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def environment(self, name: str) -> dict[str, str]:
        """The service's variables over the image's, over the minimum that a process needs."""
        own = self._services[name].get("environment", {})
        found = {**image_environment(), **{key: filled(value, self.secrets) for key, value in own.items()}}
        replaced = {key: HERE if value in self._services else self.replaced(value, name) for key, value in found.items()}
        java = {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
        return {"HOME": str(self.directory), "LANG": "C.UTF-8", **java, **replaced}

    def words(self, command: list[str], name: str = "") -> list[str]:
        """The command of a service with ports, paths and the address to listen on replaced."""
        flags = ["", *command]
        return [HERE if flag == "--host" else self.replaced(word, name) for flag, word in zip(flags, command, strict=False)]

    def replaced(self, text: str, name: str = "") -> str:
        """Replaces what a service says: the containers' paths, hosts with ports, and ports with ours."""
        for theirs, ours in self._paths.items():
            text = text.replace(theirs, ours)
        text = re.sub(r"/var/lib/(logbus|zookeeper)\b", str(self.directory / (name or "nobody")), text)
        if self._postgres is not None:
            text = re.sub(r"@postgres:5432/(\w+)", rf"@/\1?host={self._postgres.socket_directory}", text)
        hosts = "|".join(map(re.escape, [*self._services, *OWN_HOSTS]))

        def here(place: re.Match[str]) -> str:
            host = name if place[1] in OWN_HOSTS else place[1]
            return ":".join([HERE, *(self.port(host, number) for number in place[2].split(":"))])

        text = re.sub(rf"(?<![\w.-])({hosts}):(\d+(?::\d+)?)\b", here, text)
        return self.ports.get(text, text)

    def port(self, host: str, number: str) -> str:
        """Ours for a service's port. What all brokers of a cluster answer to is the first of them here."""
        if host == "broker" and host not in self.names:
            host = "broker-1"
        if host.rpartition("-")[0] not in SEVERAL:
            return self.ports.get(number, number)
        return self._ports_of.setdefault((host, number), str(free_port()))

    def _program(self, name: str) -> Program:
        return Program(
            name=name,
            command=self.words(self._services[name]["command"], name),
            environment=self.environment(name),
            directory=self.directory / "run",
            working_directory=PROJECT,
        )


def image_environment() -> Mapping[str, str]:
    """The variables that the Dockerfile's last ENV sets."""
    text = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    pairs = dict(pair.split("=", 1) for pair in shlex.split(text.replace("\\\n", " ")))
    return {key: value.replace("$PATH", os.environ["PATH"]) for key, value in pairs.items()}
