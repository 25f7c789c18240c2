"""The entry point for spark-submit: loads frozen windows into the warehouse, those of its command line, or as one that stays (the
driver's side of `logbus.resident_driver`) those that are asked for at a socket, one after the other, by one Spark.

    spark-submit load_windows.py --pipeline NAME --window 2015-05-17T10:00:00Z=1 [--window ...]

Each window is named with the attempt that was taken for it; here the attempt is only verified, never taken, because a slow
first driver must not fence out a good second one. Prints a line for each window, then one line `LOGBUS_RESULT {...}`. The exit
code is 0 only if every window is committed or superseded.

What may be secret comes by the driver's environment: LOGBUS_WAREHOUSE_URL, and LOGBUS_KAFKA_CONFIG (the client's settings as
JSON, as LoadWindowOperator and `logbus load` pass them) or LOGBUS_CLIENT_CONFIG (a file with them, such as client.properties in a
mounted secret). Executors get from the driver what they need, which is less (logbus.loads.roles).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from logbus import errors, model, spark_submit
from logbus.kafka import client, client_config, topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.resident_driver import ACCEPTED, ENDED, read_line
from sqlalchemy.exc import DBAPIError

from logbus_spark import session
from logbus_spark.application import SUCCESSFUL, Application, WindowOutcome, result, telling
from logbus_spark.session import leave_server

LOOK_SECONDS = 1.0

# Loads by the program's arguments, says what it would print, and gives the status that it would have.
Load = Callable[[Sequence[str], Callable[[str], None]], int]


def stay(path: Path, idle_seconds: float, load: Load) -> int:
    """Until nothing has come for so long, a load has failed, or Spark is gone."""
    submitted_by = os.getppid()
    session.started()
    with socket.socket(socket.AF_UNIX) as listener:
        listen_at(listener, path)
        own = path.stat().st_ino
        listener.settimeout(LOOK_SECONDS)
        try:
            idle_since = time.monotonic()
            while time.monotonic() - idle_since < idle_seconds and os.getppid() == submitted_by and inode(path) == own:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(None)
                    if (status := answer(connection, load)) != 0:
                        return status
                idle_since = time.monotonic()
        finally:
            if inode(path) == own:
                path.unlink()
    return 0


def listen_at(listener: socket.socket, path: Path) -> None:
    """Under its name only once it listens; what lies there was left by a driver that is no longer."""
    new = path.with_suffix(f".{os.getpid()}")
    listener.bind(str(new))
    listener.listen(1)
    new.rename(path)


def inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def answer(connection: socket.socket, load: Load) -> int:
    request = read_line(connection)
    if not request:
        return 0
    is_over, sending = threading.Event(), threading.Lock()

    def say(line: str) -> None:
        with sending:
            connection.sendall(line.replace("\n", " ").encode() + b"\n")

    def watch() -> None:
        with suppress(OSError):  # a reset, if whoever asked was killed before it had read all that was said
            connection.recv(1)  # nothing comes but the end
        if not is_over.is_set():
            os._exit(1)  # nobody waits for this load: its task was killed. The JVM follows its program

    say(ACCEPTED)
    threading.Thread(target=watch, daemon=True).start()
    try:
        status = load(json.loads(request), say)
    except Exception as error:  # here, since the client reads no log; what is an error of ours has a status of its own
        traceback.print_exc()
        say(f"error: {type(error).__name__}: {error}")
        status = 1
    is_over.set()
    say(f"{ENDED} {status}")
    return status


# Before anything of pyspark, which this package takes from its folder and not from Spark's archive.


# The entry point for spark-submit: loads frozen windows into the warehouse.


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load_windows.py", description="Load frozen offset windows into the warehouse.")
    parser.add_argument("--pipeline", help="the registered pipeline")
    parser.add_argument("--window", action="append", default=[], metavar="START=ATTEMPT", help="may be repeated")
    parser.add_argument("--windows-file", type=Path, help="more of them, one a line")
    for name, default in asdict(spark_submit.TaskLimits()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N")
    parser.add_argument("--stay", type=Path, metavar="PATH", help="load what is asked for at a socket there (resident_driver)")
    parser.add_argument("--idle-seconds", type=float, default=0.0, metavar="N", help="how long it stays when nothing comes")
    arguments = parser.parse_args(argv)
    if arguments.stay is not None:
        return arguments
    if arguments.pipeline is None:
        parser.error("name the registered pipeline: --pipeline NAME")
    if arguments.windows_file is not None:
        arguments.window += arguments.windows_file.read_text().split()
    if not arguments.window:
        parser.error("name at least one window: --window 2015-05-17T10:00:00Z=1")
    return arguments


CLIENT_CONFIG_VARIABLE = "LOGBUS_CLIENT_CONFIG"  # as for the commands


def kafka_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    if (text := environ.get(spark_submit.KAFKA_CONFIG_VARIABLE)) is not None:
        return client_config.translated(json.loads(text))
    if (path := environ.get(CLIENT_CONFIG_VARIABLE)) is not None:
        return client_config.read_client_config(Path(path))
    raise errors.UserError(
        f"the driver's environment has neither {spark_submit.KAFKA_CONFIG_VARIABLE} (the client's settings as JSON) nor "
        f"{CLIENT_CONFIG_VARIABLE} (a file with them): pass one as a secret"
    )


def warehouse_url(environ: Mapping[str, str]) -> str:
    if spark_submit.WAREHOUSE_URL_VARIABLE not in environ:
        raise errors.UserError(
            f"the driver's environment has no {spark_submit.WAREHOUSE_URL_VARIABLE}, which says where the ledger is "
            "(postgresql://...): pass it as a secret"
        )
    return environ[spark_submit.WAREHOUSE_URL_VARIABLE]


def printed(line: str) -> None:
    print(line, flush=True)


def run(argv: Sequence[str], environ: Mapping[str, str], say: Callable[[str], None] = printed) -> list[WindowOutcome]:
    """Loads the windows; returns what became of each."""
    arguments = _parse_arguments(argv)
    asking = client.Client(kafka_settings(environ))
    engine = connect(warehouse_url(environ))
    try:
        application = Application(
            ledger=Ledger(engine),
            log=topics.Topics(asking),
            client=asking,
            now=model.utc_now,
            report=telling(say),
            limits=spark_submit.TaskLimits(
                max_task_bytes=arguments.max_task_bytes, warehouse_connections=arguments.warehouse_connections
            ),
        )
        return application.load(arguments.pipeline, arguments.window)
    finally:
        engine.dispose()


def load(argv: Sequence[str], environ: Mapping[str, str], say: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """The exit status; `complain` is told of errors."""
    try:
        outcomes = run(argv, environ, say)
    except errors.LogbusError as error:
        complain(f"error: {error}")
        return 1
    except DBAPIError as error:
        complain(f"error: the warehouse: {error.orig}")
        return 1
    say(spark_submit.RESULT_PREFIX + json.dumps(result(outcomes)))
    return 0 if all(outcome.state in SUCCESSFUL for outcome in outcomes) else 1


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    arguments = _parse_arguments(argv)
    if spark_submit.REMOTE_VARIABLE in environ:  # told to end, it leaves the server, too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        if arguments.stay is not None:
            return stay(arguments.stay, arguments.idle_seconds, lambda words, say: load(words, environ, say, say))
        return load(argv, environ, printed, lambda line: print(line, file=sys.stderr))
    finally:
        leave_server(environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
