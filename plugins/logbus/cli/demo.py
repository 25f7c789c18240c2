"""`logbus demo`: see logbus.cli.demo_run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from logbus.cli import options, output
from logbus.cli.demo_run import PIPELINE, Demo, DemoResult, Screen, home_of_log, sample_log
from logbus.cli.signals import ending_signals
from logbus.cli.stack import MEMORABLE_PORTS, LocalStack, project_directory
from logbus.loads import embedded, engine

WATCH_SECONDS = 1.0


@click.command("demo")
@click.option(
    "--log", type=click.Path(path_type=Path), help="A log in the combined (or common) format; without it, a sample is generated."
)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures as JSON to this file.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".logbus"),
    show_default=True,
    help="Where everything is kept.",
)
def command(log: Path | None, report: Path | None, home: Path) -> None:
    """Take a log through broker, Airflow and Spark into PostgreSQL, hour by hour, and prove it.

    On a terminal everything stays up until Ctrl-C. Otherwise it ends when all is done, with status 0 only if the audit of every
    hour was exact and loading one of them again gave the same.
    """
    for number in ending_signals():
        signal.signal(number, interrupt)
    console = Console()
    log = log or sample_log(home, options.clock())
    screen = Screen(console)
    home, project = home_of_log(home, log), project_directory()
    with LocalStack(home, project=project, environment=os.environ, ports=MEMORABLE_PORTS, say=screen.say) as stack:
        demo = Demo(stack, log, screen)
        try:
            result = demo.run()
        finally:
            for note in stack.opened():
                console.print(f"note: {note}", style="yellow", soft_wrap=True)
        show(result, stack, screen)
        if report is not None:
            report.write_text(json.dumps(result.report(), indent=2) + "\n")
        if output.stdin_is_terminal() and sys.stdout.isatty():
            stay_up(stack, console)
        else:
            demo.settle()
    sys.exit(0 if result.is_exact else 1)


def show(result: DemoResult, stack: LocalStack, screen: Screen) -> None:
    """The table, the proof, the seconds and where to look."""
    psql = f"{as_typed(embedded.binary('psql'))} '{engine.libpq_uri(stack.warehouse_url)}'"
    logbus = as_typed(Path(sys.executable).with_name("logbus"))
    servers = f"--warehouse '{stack.warehouse_url}' --bootstrap-server {stack.bootstrap_servers}"
    screen.windows(result.windows)
    screen.rerun(result.rerun.before, result.rerun.after, result.rerun.identical)
    screen.seconds(result.seconds)
    screen.next_steps(
        [
            ("Airflow", f"{stack.airflow.settings.url}/dags/{PIPELINE}"),
            ("Broker", f"kcat -b {stack.bootstrap_servers} -t {PIPELINE} -C -c 3"),
            ("Table", f'{psql} -c "select status, count(*) from {PIPELINE} group by 1 order by 2 desc"'),
            ("Ledger", f"{logbus} window ls --pipeline {PIPELINE} {servers}"),
        ]
    )


def as_typed(program: Path) -> Path:
    """The shortest way to name a program from here."""
    here = Path.cwd()
    return program.relative_to(here) if program.is_relative_to(here) else program


def stay_up(stack: LocalStack, console: Console) -> None:
    """Until Ctrl-C, or until a part of the stack exits on its own."""
    console.print("Everything stays up: Ctrl-C ends it.")
    try:
        while True:
            stack.raise_if_ended()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        console.print("Stopping everything ...")


def interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM and SIGHUP act as Ctrl-C: the stack is stopped on the way out."""
    raise KeyboardInterrupt
