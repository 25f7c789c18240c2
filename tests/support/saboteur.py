"""A broker that fails on order: `python -m tests.support.saboteur [--step MODULE:NAME]... [--set MODULE:NAME=N]... serve ...`.

It is `python -m logbus_broker` with a file system between the node and the disk that counts every call and fails those it was ordered to
fail, and with wrappers around the named functions (`logbus_broker.engine:Engine.end_turn`) that raise what they were ordered to raise.
Otherwise it is the real process, with the same loop, threads, sockets and signals, except for constants that are `--set`: pauses
that last a minute in production.

Orders arrive as lines of JSON on stdin, and each is answered by a line on stdout (the log goes to stderr):

    {"do": "fail", "what": "sync_data", "where": "plain/*.log", "error": "EIO", "skip": 2, "times": 1, "when": "before"}
    {"do": "left"}      how many calls of each order have yet to fail
    {"do": "forget"}    drop all orders
    {"do": "counts"}    how often each (what, where) was called since the last "counts"

`what` is a method of FileSystem, `flush_in_kernel` (log/thread_pool.py), or a step. `where` is an fnmatch pattern for the
kind of file (`kind_of`), and empty for a step. "before" raises instead of the call, "after" once it has done its work, and
"partly" has `write_some` write a part and raise at the call for the rest, which is what a full disk does.

A thread reads the orders, so they take effect while the loop is busy. When stdin ends, the test has ended, and so does the
process.
"""

from __future__ import annotations

import argparse
import errno
import fnmatch
import functools
import importlib
import json
import os
import re
import signal
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logbus_broker import cli, node
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.log.thread_pool import KernelSync

BEFORE, AFTER, PARTLY = "before", "after", "partly"
ERRORS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("ordered"),
    "MemoryError": lambda: MemoryError("ordered"),
    "struct.error": lambda: struct.error("ordered"),
    **{
        name: functools.partial(lambda number: OSError(number, f"{os.strerror(number)} (ordered)"), getattr(errno, name))
        for name in ("ENOSPC", "EIO", "EMFILE", "EACCES")
    },
}
# Called once, before the broker serves, or unable to fail.
NOT_SABOTAGED = {"lock", "is_locked", "is_directory"}
CALLS = [name for name in vars(FileSystem) if not name.startswith("_") and name not in NOT_SABOTAGED]

_PARTITION = re.compile(r"(?P<topic>.+?)[.\d]*-\d+(?P<fate>\.[0-9a-f]{32}-(?:delete|stray))?")


@dataclass(slots=True, kw_only=True)
class Order:
    """Matching calls raise `error`, `times` times, after the first `skip` of them have passed."""

    what: str
    where: str
    error: str
    skip: int = 0
    times: int = 1
    when: str = BEFORE


class Orders:
    """What is to fail, and what was called. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: list[Order] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def called(self, what: str, where: str = "") -> Order | None:
        """Count a call and return the order that makes it fail, if any."""
        with self._lock:
            self._counts[what, where] += 1
            for order in self._orders:
                if order.what == what and order.times and fnmatch.fnmatchcase(where, order.where):
                    if order.skip:
                        order.skip -= 1
                        continue
                    order.times -= 1
                    return order
        return None

    def obey(self, line: str) -> object:
        """Execute one line of orders and return the answer to it."""
        order = json.loads(line)
        with self._lock:
            match order.pop("do"):
                case "fail":
                    self._orders.append(Order(**order))
                    return None
                case "left":
                    return [one.times for one in self._orders]
                case "forget":
                    self._orders.clear()
                    return None
                case "counts":
                    counts, self._counts = self._counts, Counter()
                    return [[what, where, count] for (what, where), count in sorted(counts.items())]
                case unknown:
                    return {"unknown": unknown}


def kind_of(path: Path, root: Path) -> str:
    """A file's path in the data directory without what differs between files of its kind: plain-3/00000000000000000042.log
    becomes plain/*.log, made.17-0 becomes made/, and the data directory itself the empty string."""
    if path.is_relative_to("/proc/self/fd"):  # a pinned directory, or a file in one
        path = path.resolve()
    if not path.is_relative_to(root):
        return "elsewhere"
    parts = path.relative_to(root).parts
    if parts and (found := _PARTITION.fullmatch(parts[0])):
        fate = (found["fate"] or "").rpartition("-")[2]
        return f"{found['topic']}{f'-{fate}' if fate else ''}/{re.sub(r'[0-9]{20}', '*', '/'.join(parts[1:]))}"
    return "/".join(parts)


class SabotagedFileSystem(FileSystem):
    """Every call goes through `Orders` first, including the calls it makes in turn (write_bytes writes and syncs)."""

    def __init__(self, orders: Orders, root: Path) -> None:
        self.orders = orders
        self.root = root

    def ordered(self, what: str, subject: Path | OpenFile) -> Order | None:
        return self.orders.called(what, kind_of(subject.path if isinstance(subject, OpenFile) else subject, self.root))


def _sabotaged(name: str) -> Callable[..., Any]:
    call = getattr(FileSystem, name)

    @functools.wraps(call)
    def sabotaged(self: SabotagedFileSystem, subject: Path | OpenFile, *arguments: Any, **named: Any) -> Any:
        order = self.ordered(name, subject)
        if order is None:
            return call(self, subject, *arguments, **named)
        if order.when == PARTLY:
            (first, *_), position = arguments
            part = memoryview(first)[: max(len(first) // 2, 1)]
            order.when, order.times = BEFORE, order.times + 1
            return call(self, subject, [part], position)
        if order.when == AFTER:
            call(self, subject, *arguments, **named)
        raise ERRORS[order.error]()

    return sabotaged


for _name in CALLS:
    setattr(SabotagedFileSystem, _name, _sabotaged(_name))


def sabotage_kernel(filesystem: SabotagedFileSystem) -> None:
    """A flush by KernelSync makes no call of the file system, so its outcome is replaced."""
    sync = KernelSync.sync

    def sabotaged(self: KernelSync, file: OpenFile, then: Callable[[OSError | None], None]) -> bool:
        order = filesystem.ordered("flush_in_kernel", file)
        if order is None:
            return sync(self, file, then)
        error = ERRORS[order.error]()
        assert isinstance(error, OSError)
        return sync(self, file, lambda _: then(error))

    KernelSync.sync = sabotaged  # type: ignore[method-assign]


def sabotage_step(orders: Orders, step: str) -> None:
    """Wrap the function before anything is built, so that every stored reference to it is one to the wrapper."""
    module, _, path = step.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @functools.wraps(function)
    def sabotaged(*arguments: Any, **named: Any) -> Any:
        order = orders.called(step)
        if order is not None and order.when == BEFORE:
            raise ERRORS[order.error]()
        result = function(*arguments, **named)
        if order is not None:
            raise ERRORS[order.error]()
        return result

    wrapper = property(sabotaged) if isinstance(function, property) else sabotaged
    setattr(owner, name, staticmethod(wrapper) if isinstance(vars(owner).get(name), staticmethod) else wrapper)


def set_constant(text: str) -> None:
    place, _, number = text.partition("=")
    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)
    setattr(module, name, type(getattr(module, name))(number))


def take_orders(orders: Orders) -> None:
    for line in sys.stdin:
        print(json.dumps(orders.obey(line)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.saboteur")
    parser.add_argument("--step", action="append", default=[], metavar="MODULE:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="MODULE:NAME=NUMBER")
    own, rest = parser.parse_known_args(argv)
    orders = Orders()
    for step in own.step:
        sabotage_step(orders, step)
    for constant in own.set:
        set_constant(constant)
    build = node.LogBroker

    def sabotaged_node(config: Any) -> Any:
        filesystem = SabotagedFileSystem(orders, config.log_dirs)
        sabotage_kernel(filesystem)
        return build(config, filesystem=filesystem)

    node.LogBroker = sabotaged_node  # type: ignore[assignment,misc]
    threading.Thread(target=take_orders, args=(orders,), daemon=True).start()
    cli.main(rest)


if __name__ == "__main__":
    main()
