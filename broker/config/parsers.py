"""How the text of a setting is parsed, and how a dataclass field becomes a setting.

A parser takes the text and returns the value; the ValueError that it raises completes the sentence "name=text: ...".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

Parser = Callable[[str], Any]

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")  # more digits are out of every range, and `int` refuses thousands of them
_DECIMAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PORT = re.compile(r"[0-9]{1,5}")


def setting(name: str, default: Any, parse: Parser, *, topic: str | None = None) -> Any:
    """A dataclass field for the Kafka setting `name`; `topic` is its name as a topic override, if it can be one."""
    return field(default=default, metadata={"name": name, "parse": parse, "topic": topic})


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name; empty if no known name is similar."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def whole_number(text: str) -> int:
    """For settings and files. `int` also takes `1_000`, `+1` and the digits of other scripts."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def between(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        value = whole_number(text.strip())  # spaces around it are no part of it, for Kafka neither
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    parse.__name__ = f"a whole number from {low} to {high}"
    return parse


def only(value: int, why: str) -> Parser:
    """For a Kafka setting that has only one possible value here; `why` explains that in the error message."""

    def parse(text: str) -> int:
        if text != str(value):
            raise ValueError(f"must be {value}: {why}")
        return value

    return parse


def boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text.strip() not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return text.strip()

    return parse


def directory(text: str) -> Path:
    if "," in text:
        raise ValueError("must be one directory: several log directories are not supported")
    return Path(text).expanduser()


def ratio(text: str) -> float:
    if not _DECIMAL.fullmatch(text.strip()) or not 0 <= float(text) <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(text)


def policies_of_cleanup(text: str) -> str:
    policies = [part.strip() for part in text.split(",")]
    if not set(policies) <= {"compact", "delete"} or len(set(policies)) != len(policies):
        raise ValueError("must be delete, compact, or compact,delete")
    return ",".join(policies)


def zookeeper_servers(text: str) -> str:
    """`host:port,host:port/chroot`, without spaces; the default port is ZooKeeper's 2181."""
    if not text.strip():
        return ""
    servers, _, chroot = text.strip().partition("/")
    whole = []
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or server.strip().endswith("]"):  # an IPv6 address without a port
            host, port = server.strip(), "2181"
        if not host or not _PORT.fullmatch(port) or not 0 < int(port) <= 65535:
            raise ValueError("must look like host1:2181,host2:2181/chroot (the chroot may be left out)")
        whole.append(f"{host}:{port}")
    chroot = chroot.rstrip("/")
    if chroot and not all(chroot.split("/")):
        raise ValueError(f"the chroot /{chroot} has an empty part")
    return ",".join(whole) + (f"/{chroot}" if chroot else "")


def as_written(text: str) -> str:
    return text
