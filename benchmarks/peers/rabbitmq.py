"""A real RabbitMQ on loopback, unpacked from Debian's packages: its own node, its own port mapper, the caller's directory.

The Erlang VM is started directly with the flags of RabbitMQ's start script (3.10: sbin/rabbitmq-server, rabbitmq-env), not
through the script, which would put shells between us and the process that we measure and stop. The port mapper (epmd) is ours
too: otherwise the first node on a machine leaves one running forever.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks import processes
from benchmarks.peers import debian
from benchmarks.peers.maven import Jars
from benchmarks.peers.server import Server
from benchmarks.processes import Missing

PACKAGES = (
    "rabbitmq-server", "erlang-base", "erlang-asn1", "erlang-crypto", "erlang-eldap", "erlang-ftp", "erlang-inets",
    "erlang-mnesia", "erlang-os-mon", "erlang-parsetools", "erlang-public-key", "erlang-runtime-tools", "erlang-snmp",
    "erlang-ssl", "erlang-syntax-tools", "erlang-tftp", "erlang-tools", "erlang-xmerl", "libsctp1",
)  # fmt: skip
AMQP_CLIENT = Jars(name="amqp-client-5.22.0", artifacts=("com.rabbitmq:amqp-client:5.22.0", "org.slf4j:slf4j-simple:1.7.36"))
STREAM_CLIENT = Jars(
    name="stream-client-0.18.0", artifacts=("com.rabbitmq:stream-client:0.18.0", "org.slf4j:slf4j-simple:1.7.36")
)
_START_SCRIPT_FLAGS = (
    "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl", "+W", "w",
    "+MBas", "ageffcbf", "+MHas", "ageffcbf", "+MBlmbcs", "512", "+MHlmbcs", "512", "+MMmcs", "30",
    "+P", "1048576", "+t", "5000000", "+stbt", "db", "+zdbbl", "128000", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
    "-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false", "-kernel", "prevent_overlapping_partitions", "false",
)  # fmt: skip


class RabbitMq(Server):
    """One node with the stream plugin and otherwise default settings. AMQP at `amqp`, streams at `stream`."""

    name = "RabbitMQ"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        root = debian.unpacked("rabbitmq", PACKAGES)
        self._erlang = root / "usr/lib/erlang"
        self._home = _only(root, "usr/lib/rabbitmq/lib/rabbitmq_server-*")
        self._binaries = _only(root, "usr/lib/erlang/erts-*") / "bin"
        self._libraries = root / f"usr/lib/{platform.machine()}-linux-gnu"
        self.name = f"RabbitMQ {self._home.name.rpartition('-')[2]}"
        self._stream_port, self._distribution_port, self._mapper_port = (processes.free_port() for _ in range(3))
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def amqp(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    @property
    def stream(self) -> str:
        return f"rabbitmq-stream://guest:guest@127.0.0.1:{self._stream_port}"

    def command(self) -> list[str]:
        return [str(self._binaries / "erlexec"), *_START_SCRIPT_FLAGS]

    def environment(self) -> Mapping[str, str]:
        own = {
            "HOME": self.directory,
            "PATH": f"{self._binaries}:{self._erlang / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "LD_LIBRARY_PATH": self._libraries,
            "LANG": "C.UTF-8",
            "ROOTDIR": self._erlang,
            "BINDIR": self._binaries,
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_LIBS": self._home / "plugins",
            "ERL_EPMD_PORT": self._mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_MAX_ETS_TABLES": 50_000,
            "ERL_MAX_PORTS": 65_536,
            "RABBITMQ_HOME": self._home,
            "RABBITMQ_PLUGINS_DIR": self._home / "plugins",
            "RABBITMQ_NODENAME": "rabbit@127.0.0.1",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "RABBITMQ_MNESIA_BASE": self.data,
            "RABBITMQ_LOG_BASE": self.directory / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": self.directory / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "enabled_plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": self.directory / "feature_flags",
            "RABBITMQ_PID_FILE": self.directory / "pid",
        }
        return {name: str(value) for name, value in own.items()}

    def prepare(self) -> None:
        super().prepare()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self._stream_port}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {self._stream_port}\n"
            "log.console.level = warning\n"
        )

    def launch(self) -> None:
        mapper = [str(self._binaries / "epmd")]
        self._mapper = processes.start(mapper, log_path=self.directory / "epmd.out", env=self.environment())
        super().launch()

    def stop(self) -> int:
        status = super().stop()
        if self._mapper is not None:
            processes.stop(self._mapper)
            self._mapper = None
        return status


def _only(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern))
    if not found:
        raise Missing(f"Debian's packages of RabbitMQ look different here: no {pattern} in {root}")
    return found[-1]
