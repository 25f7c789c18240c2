"""`python -m logbus_broker`: serve, list the settings, inspect stored files, take a standalone broker into a cluster, accept an
older state of ZooKeeper.

Errors that the user can fix are one line, exit code 1.

argparse, because startup time matters: the friendlier libraries take longer to import than the log takes to open.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logbus_broker import errors, logs
from logbus_broker.properties import load_config
from logbus_broker.settings import BrokerConfig, LogConfig

if TYPE_CHECKING:
    from logbus_broker.cluster.store import Store

_MENDABLE = (errors.ConfigError, errors.StartupError, errors.StorageError)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; SystemExit with 1 if it fails, with 2 on a usage error."""
    arguments = parser().parse_args(argv)
    try:
        COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `... | head`: the reader has what it wanted; what is left must not be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def parser() -> ArgumentParser:
    top = ArgumentParser(
        prog="python -m logbus_broker", description="The logbus broker: a log for records, spoken to with the Kafka protocol."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help=serve.__doc__, description=serve.__doc__)
    recovering = commands.add_parser("recover", help="accept an older state of ZooKeeper", description=recover.__doc__)
    recovering.add_argument("--accept", action="store_true", help="do it; otherwise nothing is changed")
    joining = commands.add_parser("join", help="take a standalone broker's data into a new cluster", description=join.__doc__)
    joining.add_argument("--accept", action="store_true", help="do it; otherwise nothing is changed")
    for command in (serving, recovering, joining):
        command.add_argument("--config", metavar="FILE", help="a properties file with Kafka's own setting names")
        command.add_argument(
            "--override",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="one setting; wins over the file; may be repeated",
        )
    serving.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="INFO by default")
    commands.add_parser("settings", help=settings.__doc__, description=settings.__doc__)
    verifying = commands.add_parser("verify", help="look for faults in stored files", description=verify.__doc__)
    verifying.add_argument("directory", type=Path, help="a data directory, or one partition in it")
    dumping = commands.add_parser("dump-log", help="print what stored files hold", description=dump_log.__doc__)
    dumping.add_argument("files", nargs="+", type=Path, metavar="FILE")
    dumping.add_argument("--records", action="store_true", help="the records in each batch, too, with their keys and values")
    return top


def serve(arguments: Namespace) -> None:
    """Serve until SIGTERM, Ctrl-C or, except under nohup, a closed terminal."""
    try:
        config = load_config(arguments.config, arguments.override)
        logs.set_up_logging(sys.stderr, level=arguments.log_level, form=config.log_format)
        for sentence in config.unknown_settings:
            logging.getLogger("broker.config").warning("%s", sentence)
        if config.audit_log:
            with errors.storage_errors("open logbus.audit.log"):
                file = os.open(config.audit_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            logs.set_up_audit_log(os.fdopen(file, "w", buffering=1))
        from logbus_broker.node import LogBroker  # imported here, so that --help and errors in settings appear at once

        node = LogBroker(config)
        node.serve()
    except _MENDABLE as error:
        raise SystemExit(f"error: {error}") from None


def settings(arguments: Namespace) -> None:
    """List every setting with what it is for and its default: a configuration file to start from."""
    from logbus_broker.settings_catalog import DOCUMENTATION, as_text

    broker, log = BrokerConfig(), LogConfig()
    rows = [(item.metadata["name"], getattr(broker, item.name)) for item in fields(BrokerConfig) if item.metadata]
    rows += [(item.metadata["name"], getattr(log, item.name)) for item in fields(LogConfig)]
    for name, default in sorted(rows):
        text = as_text(default)
        print(f"# {DOCUMENTATION[name]}")
        print(f"#{name}=" if text is None else f"{name}={text}")


def verify(arguments: Namespace) -> None:
    """Read every segment, index and checkpoint of a data directory, or of one partition in it, and name each fault with its
    file and position. Changes nothing; the broker may be running. Exit status 1 where there is a fault."""
    from logbus_broker.filesystem import FileSystem
    from logbus_broker.log.inspection import Verification

    if not arguments.directory.is_dir():
        raise SystemExit(f"error: {arguments.directory} is not a directory")
    run, count = Verification(arguments.directory, FileSystem()), 0
    try:
        for fault in run.faults():
            print(fault)
            count += 1
    except OSError as error:
        raise SystemExit(f"error: {error}") from None
    read = f"{run.partitions} partitions, {run.segments} segments, {run.batches} batches, {run.read_bytes} bytes"
    print(f"{count or 'no'} fault{'' if count == 1 else 's'} in {read}")
    if count:
        raise SystemExit(1)


def dump_log(arguments: Namespace) -> None:
    """Print the batches of a .log file, the entries of an .index or .timeindex, or the producers of a .snapshot, in the form of
    Apache Kafka's kafka-dump-log."""
    from logbus_broker.filesystem import FileSystem
    from logbus_broker.log.inspection import dump_file

    try:
        for file in arguments.files:
            for line in dump_file(file, FileSystem(), records=arguments.records):
                print(line)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


def recover(arguments: Namespace) -> None:
    """Show how ZooKeeper's state differs from what this broker's data directory has seen, and with --accept make it the state
    that all brokers obey. For a ZooKeeper that came back from a backup; run it for each broker, which must be stopped. What
    ZooKeeper does not know is set aside by the next starts, never deleted."""
    try:
        config = load_config(arguments.config, arguments.override)
        if not config.zookeeper_connect:
            raise errors.ConfigError("zookeeper.connect is not set: a broker alone keeps its topics in its own directory")
        from logbus_broker import join as recovery
        from logbus_broker.clock import SystemClock
        from logbus_broker.cluster.zookeeper import run_to_end
        from logbus_broker.filesystem import FileSystem
        from logbus_broker.log.log_directory import LogDirectory
        from logbus_broker.node import zookeeper_store

        clock = SystemClock()
        directory = LogDirectory.inspect(config.log_dirs, broker_id=config.broker_id, filesystem=FileSystem())

        def opened(wake: Callable[[], None]) -> Store:
            return zookeeper_store(config, clock, wake)

        image, in_zookeeper = run_to_end(opened, recovery.newest(), clock)
        comparison = recovery.compare(image, in_zookeeper, directory, config.broker_id)
        print("\n".join(comparison.lines()))
        if arguments.accept:
            number = run_to_end(opened, recovery.accept(clock.now_ms() // 1000), clock)
            print(f"accepted as generation {number}: start every broker again")
        elif comparison.is_older:
            print(
                "ZooKeeper lacks what this broker has seen. Two ways forward:\n"
                "  restore a newer state of ZooKeeper       nothing is lost\n"
                "  accept this one (--accept)               topics, settings, users and ACLs made since are gone;\n"
                "                                           partitions that it does not know are renamed and kept, everywhere"
            )
        else:
            print("nothing needs to be accepted, as far as this directory knows: --accept if its broker refuses to start")
    except _MENDABLE as error:
        raise SystemExit(f"error: {error}") from None


def join(arguments: Namespace) -> None:
    """Show what a standalone broker keeps beside its logs (topics, settings, users, ACLs, quotas, producer ids), and with
    --accept write it to ZooKeeper: its directory is then that of the first broker of a new cluster, with all records, groups and
    offsets. It must have been stopped. The settings are those with which it will be served from then on."""
    try:
        config = load_config(arguments.config, arguments.override)
        if not config.zookeeper_connect:
            raise errors.ConfigError("zookeeper.connect is not set: which ZooKeeper, HOST:PORT/PATH, is the cluster to be in?")
        from uuid import uuid4

        from logbus_broker import join as joining
        from logbus_broker.clock import SystemClock
        from logbus_broker.cluster.store import Script, in_batches
        from logbus_broker.cluster.zookeeper import run_to_end
        from logbus_broker.filesystem import FileSystem
        from logbus_broker.node import boot_id, zookeeper_store

        clock = SystemClock()
        directory = joining.JoiningDirectory(config, FileSystem(), uuid4)
        metadata = directory.metadata()

        def in_zookeeper(script: Script[Any]) -> None:
            run_to_end(lambda wake: zookeeper_store(config, clock, wake), script, clock)

        in_zookeeper(joining.check_cluster(directory.cluster_id, is_joining=directory.is_joining))
        print(f"{config.log_dirs}, of broker {config.broker_id}:", *metadata.lines(), sep="\n")
        least = config.log.min_insync_replicas
        if least > 1:
            print(
                f"min.insync.replicas={least}: topics have one replica at first, and refuse acks=all until they have {least}; "
                "leave it at 1 until then"
            )
        where = f"cluster {directory.cluster_id} at {config.zookeeper_connect}"
        if not arguments.accept:
            print(f"--accept makes it the first broker of {where}; it cannot be served alone after that")
            return
        directory.begin(metadata)
        in_zookeeper(joining.make_cluster(directory.cluster_id))
        for topics in in_batches(metadata.topics, joining.TOPICS_AT_ONCE):
            in_zookeeper(joining.create_topics([(directory.cluster_topic(topic, clock), topic.overrides) for topic in topics]))
        in_zookeeper(joining.write_rest(metadata))
        directory.end(boot_id())
        print(f"broker {config.broker_id} is the first of {where}: serve it with the same settings")
    except _MENDABLE as error:
        raise SystemExit(f"error: {error}") from None


COMMANDS: Mapping[str, Callable[[Namespace], None]] = {
    "serve": serve,
    "settings": settings,
    "verify": verify,
    "dump-log": dump_log,
    "recover": recover,
    "join": join,
}
