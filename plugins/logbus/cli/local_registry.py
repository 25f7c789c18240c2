"""The schema registry of a local stack: a process that keeps schemas in the brokers' topic `_schemas`.

    HOME/registry.port   its port at the last start, used again if it is free

With secured brokers it speaks TLS by a certificate of their authority, lets in their users, and has a user of its own there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from logbus import waiting
from logbus.cli import secure_home
from logbus.cli.local_brokers import HERE
from logbus.cli.processes import Program, ReservedPorts, Supervisor, accepts_connections

PORT_FILE = "registry.port"
PORT_DEFAULT = 8081  # Confluent's


class LocalRegistry:
    """One registry; `security` is how its brokers are secured."""

    def __init__(
        self,
        home: Path,
        *,
        environment: Mapping[str, str],
        security: secure_home.SecureHome | None = None,
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self._home = home
        self._environment = environment
        self._security = security
        self._say = say
        self._ports = ReservedPorts(1, [self._remembered_port()])
        self._processes = Supervisor()
        self.port = self._ports.numbers[0]

    @property
    def url(self) -> str:
        if self._security is None:
            return f"http://{HERE}:{self.port}"
        return f"https://{secure_home.bracketed(self._security.advertised_host or HERE)}:{self.port}"

    def start(self, bootstrap_servers: str) -> None:
        """Returns when it answers: the brokers have to run."""
        (self._home / PORT_FILE).write_text(str(self.port))
        process = self._processes.start(self._program(bootstrap_servers))
        what = f"the schema registry at {self.url}"
        waiting.wait_until(lambda: accepts_connections(self.port), what=what, processes=[process], say=self._say)

    def keep_up(self) -> None:
        """Starts it again if it has ended: `StackError` if it has ended too often."""
        self._processes.keep_up(self._say)

    def report(self) -> str:
        return self._processes.report()

    def stop(self) -> None:
        self._processes.end()
        self._ports.release()

    def _program(self, bootstrap_servers: str) -> Program:
        options = ["--port", str(self.port), "--bootstrap-server", bootstrap_servers]
        if self._security is not None:
            host = HERE if self._security.advertised_host is None else self._security.every_interface
            file = self._security.client_file(secure_home.REGISTRY)
            options += ["--host", host, "--login", "--client-config", str(file)]
            options += ["--certificate", str(self._security.registry_certificate_path)]
        return Program(
            name="registry",
            command=[sys.executable, "-m", "logbus", "registry", "serve", *options],
            environment=self._environment,
            directory=self._home / "run",
            working_directory=self._home,
        )

    def _remembered_port(self) -> int:
        try:
            return int((self._home / PORT_FILE).read_text())
        except (OSError, ValueError):
            return PORT_DEFAULT
