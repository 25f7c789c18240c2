"""The entry point for spark-submit: computes a stream.

    spark-submit stream.py --stream NAME [--once] [--run-id TEXT]

Without --once it runs until SIGTERM, after which it commits the epoch that it is at; a second one ends it at once. Its first line
is `LOGBUS_DRIVER` and its process id, so that whoever submits it can pass the signal on; the last one is `LOGBUS_RESULT {...}`.
Secrets come by the environment, as those of a load (load_windows.py).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import FrameType

from logbus import errors, model, spark_submit
from logbus.kafka import client, topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.streams.run import DRIVER_PREFIX
from sqlalchemy.exc import DBAPIError

from logbus_spark import stream_driver
from logbus_spark.application import Application
from logbus_spark.load_windows import kafka_settings, warehouse_url
from logbus_spark.session import leave_server, setting_of_jvm
from logbus_spark.stream_driver import StreamDriver, StreamRun

JVM_VARIABLE = "PYSPARK_GATEWAY_PORT"  # set by the JVM of spark-submit for the program that it starts


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stream.py", description="Compute a stream.")
    parser.add_argument("--stream", required=True, help="its name")
    parser.add_argument("--once", action="store_true", help="end when everything is read that the log has now")
    parser.add_argument("--run-id", default="command line", help="of whom the ledger shows as its driver")
    return parser.parse_args(argv)


def tell(line: str) -> None:
    with suppress(BrokenPipeError):  # whoever submitted it has ended; the ledger has what happened
        print(line, flush=True)


def run(argv: Sequence[str], environ: Mapping[str, str], stop: threading.Event | None = None) -> StreamRun:
    arguments = _parse_arguments(argv)
    asking = client.Client(kafka_settings(environ))
    application = Application(
        ledger=Ledger(connect(warehouse_url(environ))),
        log=topics.Topics(asking),
        client=asking,
        now=model.utc_now,
        report=lambda outcome: None,
    )
    driver = StreamDriver(application=application, name=arguments.stream, run_id=arguments.run_id, say=tell)
    driver.stop = stop or driver.stop
    driver.checkpoint_location = setting_of_jvm(stream_driver.CHECKPOINT_SETTING, environ)
    if JVM_VARIABLE in environ:
        submitted_by = os.getppid()  # a process whose parent has ended gets another one
        driver.has_lost_spark = lambda: os.getppid() != submitted_by
    return driver.run(once=arguments.once)


def stopping(stop: threading.Event) -> None:
    """The first SIGTERM sets the event, the second ends the process."""

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(errors.ExitCode.TERMINATED)
        stop.set()

    signal.signal(signal.SIGTERM, note)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    stop = threading.Event()
    stopping(stop)
    tell(f"{DRIVER_PREFIX}{os.getpid()}")
    try:
        done = run(argv, environ, stop)
    except errors.LogbusError as error:
        print(f"error: {error}", file=sys.stderr)
        return errors.exit_code_of(error)
    except DBAPIError as error:
        print(f"error: the warehouse: {error.orig}", file=sys.stderr)
        return 1
    finally:
        leave_server(environ)
    tell(spark_submit.RESULT_PREFIX + json.dumps(asdict(done)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
