"""Cluster managers that answer as the real ones do, and the programs that Airflow's Spark provider starts on a worker.

`spark-submit` and `yarn` on PATH pass their command line to a `Cluster` in the test's process, print the lines it returns and
exit with its status. The same server is the REST interface of a standalone master, YARN's ResourceManager and Kubernetes' API
server, as far as the provider uses them (its hook `SparkSubmitHook`). The lines printed are those of Spark 4.1 that the provider
expects; tests/soak/test_real_spark_submit.py compares them with a real spark-submit, which takes this server for Kubernetes, too.

A driver's work is a function of the test: it is called at the point where a real driver would have run, with the application's
arguments, and returns its exit status. So a test decides what happens while a driver runs, in this process and without waiting.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as provider_hook
from airflow.providers.apache.spark.operators import spark_submit as provider_operator
from logbus.waiting import PATIENCE_SECONDS

NAMESPACE = "spark"  # the only one in which the provider finds the pod's name in the output of a spark-submit that does not wait

PROGRAMS = ("spark-submit", "yarn")

# Sends its arguments to the cluster; the last line of the answer is its exit status.
PROGRAM = """#!{python} -SE
import http.client, json, os, sys
connection = http.client.HTTPConnection("127.0.0.1", {port})
connection.request("POST", "/programs/" + os.path.basename(sys.argv[0]), json.dumps(sys.argv[1:]))
for line in connection.getresponse():
    if line.startswith(b"exit "):
        sys.exit(int(line.split()[1]))
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
sys.exit("the cluster is gone")
"""


class Manager(Enum):
    """Where an application runs. `TRACKED`: Airflow follows its driver, and spark-submit does not wait for it."""

    CLIENT = "client"
    CLIENT_OF_STANDALONE = "client of a standalone cluster"
    STANDALONE = "standalone cluster"
    YARN = "yarn"
    YARN_TRACKED = "yarn, tracked"
    KUBERNETES = "kubernetes"
    KUBERNETES_TRACKED = "kubernetes, tracked"


IN_CLIENT_MODE = (Manager.CLIENT, Manager.CLIENT_OF_STANDALONE)
ON_YARN = (Manager.YARN, Manager.YARN_TRACKED)
ON_KUBERNETES = (Manager.KUBERNETES, Manager.KUBERNETES_TRACKED)
OPERATOR_ARGUMENTS: Mapping[Manager, Mapping[str, bool]] = {
    Manager.YARN_TRACKED: {"yarn_track_via_rm_api": True},
    Manager.KUBERNETES_TRACKED: {"track_driver_via_k8s_api": True},
}

Work = Callable[[Sequence[str]], int]


@dataclass
class Driver:
    """A submitted driver. Its exit status is None until it has run; a killed or deleted one never succeeds."""

    id: str
    arguments: list[str]
    exit_status: int | None = None
    is_gone: bool = False
    pod: dict[str, Any] = field(default_factory=dict)  # as a real spark-submit has created it, if one did


@dataclass
class Cluster:
    """Drivers by id, in the order of their submission; the ids of those killed; and the command lines of programs started."""

    manager: Manager
    work: Work
    drivers: dict[str, Driver] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    port: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def submitted(self, arguments: Sequence[str]) -> Driver:
        """A driver as spark-submit leaves it with the cluster."""
        number = next(self._numbers)
        if self.manager in ON_YARN:
            name = f"application_1763820000000_{number:04}"
        elif self.manager in ON_KUBERNETES:
            name = f"logbus-load-{number:016x}-driver"
        else:
            name = f"driver-20261121123000-{number:04}"
        return self.known(Driver(name, list(arguments)))

    def known(self, driver: Driver) -> Driver:
        self.drivers[driver.id] = driver
        return driver

    def ended(self, driver: Driver) -> int:
        """Run the driver's work if it has not run yet, and return its exit status."""
        if driver.exit_status is None:
            driver.exit_status = self.work(driver.arguments)
        return 143 if driver.is_gone else driver.exit_status

    def kill(self, driver_id: str) -> None:
        self.killed.append(driver_id)
        self.drivers[driver_id].is_gone = True

    @property
    def connection(self) -> str:
        """Airflow's connection to this cluster."""
        here = f"127.0.0.1:{self.port}"
        master, extra = {
            Manager.CLIENT: ("local[2]", {}),
            Manager.CLIENT_OF_STANDALONE: ("spark://127.0.0.1:7077", {"deploy-mode": "client"}),
            Manager.STANDALONE: ("spark://127.0.0.1:7077", {"deploy-mode": "cluster", "rest-port": self.port}),
            Manager.YARN: ("yarn", {"deploy-mode": "cluster"}),
            Manager.YARN_TRACKED: ("yarn", {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": here}),
            Manager.KUBERNETES: (f"k8s://http://{here}", {"deploy-mode": "cluster", "namespace": NAMESPACE}),
            Manager.KUBERNETES_TRACKED: (f"k8s://http://{here}", {"deploy-mode": "cluster", "namespace": NAMESPACE}),
        }[self.manager]
        return json.dumps({"conn_type": "spark", "host": master, "extra": extra})

    # Output of the programs

    def run_program(self, name: str, command: list[str]) -> Iterator[str]:
        """The lines that a program prints; the last is `exit STATUS`."""
        self.commands.append([name, *command])
        if name == "yarn":
            self.kill(command[command.index("-kill") + 1])
            yield "exit 0"
        else:
            yield from self.submit(command)

    def submit(self, command: list[str]) -> Iterator[str]:
        arguments = application_arguments(command)
        if self.manager in IN_CLIENT_MODE:
            yield "26/11/21 12:30:00 INFO SparkContext: Running Spark version 4.1.3"
            yield f"exit {self.work(arguments)}"
            return
        driver = self.submitted(arguments)
        if self.manager is Manager.STANDALONE:
            yield f"26/11/21 12:30:00 INFO ClientEndpoint: Driver successfully submitted as {driver.id}"
            yield f"26/11/21 12:30:00 INFO ClientEndpoint: State of {driver.id} is SUBMITTED"
            yield "exit 0"
        elif self.manager in ON_YARN:
            yield from self.submit_to_yarn(driver, waits="spark.yarn.submit.waitAppCompletion=false" not in command)
        else:
            yield from self.submit_to_kubernetes(
                driver, waits="spark.kubernetes.submission.waitAppCompletion=false" not in command
            )

    def submit_to_yarn(self, driver: Driver, waits: bool) -> Iterator[str]:
        yield f"26/11/21 12:30:00 INFO YarnClientImpl: Submitted application {driver.id}"
        if not waits:
            yield "exit 0"
            return
        yield f"26/11/21 12:30:01 INFO Client: Application report for {driver.id} (state: RUNNING)"
        status = self.ended(driver)
        yield f"26/11/21 12:30:02 INFO Client: Application report for {driver.id} (state: FINISHED)"
        yield f"exit {int(status != 0)}"

    def submit_to_kubernetes(self, driver: Driver, waits: bool) -> Iterator[str]:
        application = f"spark-{driver.id.split('-')[-2]}"
        named = f"with application ID {application} and submission ID {NAMESPACE}:{driver.id}"
        if not waits:
            yield f"26/11/21 12:30:00 INFO Client: Deployed Spark application logbus load {named} into Kubernetes"
            yield "exit 0"
            return
        yield "26/11/21 12:30:00 INFO LoggingPodStatusWatcherImpl: State changed, new state: "
        yield f"\t pod name: {driver.id}"
        yield f"26/11/21 12:30:00 INFO LoggingPodStatusWatcherImpl: Waiting for application logbus load {named} to finish..."
        status = self.ended(driver)
        yield "26/11/21 12:30:02 INFO LoggingPodStatusWatcherImpl: Container final statuses:"
        yield "\t container name: spark-kubernetes-driver"
        yield f"\t exit code: {status}"
        yield "exit 0"  # whatever became of the driver

    # Answers of the servers

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """HTTP status and JSON."""
        place = path.partition("?")[0].strip("/").split("/")
        match method, place:
            case "GET", ["v1", "submissions", "status", driver_id]:
                return self.standalone_status(driver_id)
            case "POST", ["v1", "submissions", "kill", driver_id]:
                self.kill(driver_id)
                return 200, {"action": "KillSubmissionResponse", "submissionId": driver_id, "success": True}
            case "GET", ["ws", "v1", "cluster", "apps", driver_id]:
                return self.yarn_status(driver_id)
            case "PUT", ["ws", "v1", "cluster", "apps", driver_id, "state"]:
                self.kill(driver_id)
                return 202, body
            case "POST", ["api", "v1", "namespaces", _, "pods"]:
                return self.create_pod(body)
            case "PATCH", ["api", "v1", "namespaces", *_]:
                return 200, body  # what the pod needs besides: a service, a config map
            case "GET", ["api", "v1", "namespaces", _, "pods"]:
                return 200, [{"type": "MODIFIED", "object": self.pod(driver_id)[1]} for driver_id in self.drivers]
            case "GET", ["api", "v1", "namespaces", _, "pods", driver_id]:
                return self.pod(driver_id)
            case "DELETE", ["api", "v1", "namespaces", _, "pods", driver_id]:
                self.kill(driver_id)
                return 200, {"kind": "Status", "status": "Success"}
        return 404, {"message": f"{method} {path} is not known here"}

    def standalone_status(self, driver_id: str) -> tuple[int, Any]:
        answer: dict[str, Any] = {"action": "SubmissionStatusResponse", "serverSparkVersion": "4.1.3", "submissionId": driver_id}
        driver = self.drivers.get(driver_id)
        if driver is None:
            return 200, {**answer, "success": False}
        status = self.ended(driver)
        state = "KILLED" if driver.is_gone else "FINISHED" if status == 0 else "FAILED"
        return 200, {**answer, "driverState": state, "success": True, "workerHostPort": "127.0.0.1:7078", "workerId": "worker-1"}

    def yarn_status(self, driver_id: str) -> tuple[int, Any]:
        driver = self.drivers.get(driver_id)
        if driver is None:
            return 404, {"RemoteException": {"exception": "NotFoundException", "message": f"app with id: {driver_id} not found"}}
        status = self.ended(driver)
        state = "KILLED" if driver.is_gone else "FINISHED"
        final = "KILLED" if driver.is_gone else "SUCCEEDED" if status == 0 else "FAILED"
        return 200, {"app": {"id": driver_id, "state": state, "finalStatus": final, "diagnostics": f"exitCode: {status}"}}

    def pod(self, driver_id: str) -> tuple[int, Any]:
        driver = self.drivers.get(driver_id)
        if driver is None or driver.is_gone:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        status = self.ended(driver)
        if driver.is_gone:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        terminated = {"exitCode": status, "reason": "Completed" if status == 0 else "Error"}
        container = {"name": "spark-kubernetes-driver", "state": {"terminated": terminated}}
        phase = "Succeeded" if status == 0 else "Failed"
        return 200, {"kind": "Pod", **driver.pod, "status": {"phase": phase, "containerStatuses": [container]}}

    def create_pod(self, pod: dict[str, Any]) -> tuple[int, Any]:
        (container,) = pod["spec"]["containers"]
        metadata = {**pod["metadata"], "uid": str(uuid4())}
        driver = self.known(Driver(metadata["name"], application_arguments(container["args"]), pod={**pod, "metadata": metadata}))
        return 201, {**driver.pod, "status": {"phase": "Pending"}}


def application_arguments(command: Sequence[str]) -> list[str]:
    """What follows the program on spark-submit's command line."""
    program = next(
        number for number, word in enumerate(command) if word.endswith((".py", ".jar")) and command[number - 1][:2] != "--"
    )
    return list(command[program + 1 :])


class Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"null")
        if self.path.startswith("/programs/"):
            self.send_response(200)
            self.end_headers()
            for line in self.cluster.run_program(self.path.rpartition("/")[2], body):
                self.say(line)
            return
        status, answer = self.cluster.answer(self.command, self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if isinstance(answer, list):  # a watch of Kubernetes, one event per line
            self.wfile.write(b"".join(json.dumps(event).encode() + b"\n" for event in answer))
        else:
            self.wfile.write(json.dumps(answer, indent=2, separators=(",", " : ")).encode())  # one field per line, like Spark

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def say(self, line: str) -> None:
        """Send a line to a program that may have been killed by now."""
        try:
            self.wfile.write(line.encode() + b"\n")
            self.wfile.flush()
        except OSError:
            pass

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class ApiException(Exception):
    """As the Kubernetes client raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"({status})")
        self.status = status


@dataclass
class CoreApi:
    """The two requests that the provider makes through the Kubernetes client, which logbus does not depend on."""

    cluster: Cluster

    def read_namespaced_pod(self, name: str, namespace: str) -> Any:
        status, pod = self.cluster.pod(name)
        if status != 200:
            raise ApiException(status)
        return SimpleNamespace(status=SimpleNamespace(phase=pod["status"]["phase"], container_statuses=None))

    def delete_namespaced_pod(self, name: str, namespace: str, **options: Any) -> None:
        self.cluster.kill(name)


@contextmanager
def running(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch, programs: Sequence[str] = PROGRAMS
) -> Iterator[Cluster]:
    """The cluster with its programs on PATH and its connection as Airflow's `spark_default`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ClusterHandler", (Handler,), {"cluster": cluster}))
    cluster.port = server.server_address[1]
    for name in programs:
        (folder / name).write_text(PROGRAM.format(python=sys.executable, port=cluster.port))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster.connection)
    client = SimpleNamespace(get_kube_client=lambda: CoreApi(cluster), ApiException=ApiException)
    for module in (provider_hook, provider_operator):
        monkeypatch.setattr(module, "kube_client", client, raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", SimpleNamespace(client=SimpleNamespace(V1DeleteOptions=dict)))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, name="cluster", daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join(PATIENCE_SECONDS)
        server.server_close()


class TaskStateStore(dict[str, Any]):
    """What Airflow keeps for a task across tries and clears."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value
