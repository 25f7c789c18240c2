"""The entry point for spark-submit: loads frozen windows into the warehouse.

    spark-submit load_windows.py --pipeline NAME --window 2015-05-17T10:00:00Z=1 [--window ...]

Each window is named with the attempt that was taken for it; here the attempt is only verified, never taken, because a slow
first driver must not fence out a good second one. Secrets are passed by environment (`logbus.spark_submit`). Prints a line
for each window, then one line `LOGBUS_RESULT {...}`. The exit code is 0 only if every window is committed or superseded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logbus import errors, model, spark_submit
from logbus.kafka import client, topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from sqlalchemy.exc import DBAPIError

from logbus_spark.application import SUCCESSFUL, Application, WindowOutcome, result, telling


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load_windows.py", description="Load frozen offset windows into the warehouse.")
    parser.add_argument("--pipeline", required=True, help="the registered pipeline")
    parser.add_argument("--window", action="append", default=[], metavar="START=ATTEMPT", help="may be repeated")
    parser.add_argument("--windows-file", type=Path, help="more of them, one a line")
    arguments = parser.parse_args(argv)
    if arguments.windows_file is not None:
        arguments.window += arguments.windows_file.read_text().split()
    if not arguments.window:
        parser.error("name at least one window: --window 2015-05-17T10:00:00Z=1")
    return arguments


def secret(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise errors.UserError(f"the environment has no {name}; logbus sets it where it submits this application")
    return environ[name]


def run(argv: Sequence[str], environ: Mapping[str, str]) -> list[WindowOutcome]:
    """Loads the windows; returns what became of each."""
    arguments = _parse_arguments(argv)
    client_config: dict[str, Any] = json.loads(secret(environ, spark_submit.KAFKA_CONFIG_VARIABLE))
    application = Application(
        ledger=Ledger(connect(secret(environ, spark_submit.WAREHOUSE_URL_VARIABLE))),
        log=topics.Topics(client.Client(client_config)),
        client_config=client_config,
        now=model.utc_now,
        report=telling(lambda line: print(line, flush=True)),
    )
    return application.load(arguments.pipeline, arguments.window)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        outcomes = run(argv, environ)
    except errors.LogbusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except DBAPIError as error:
        print(f"error: the warehouse: {error.orig}", file=sys.stderr)
        return 1
    print(spark_submit.RESULT_PREFIX + json.dumps(result(outcomes)), flush=True)
    return 0 if all(outcome.state in SUCCESSFUL for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
