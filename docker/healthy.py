"""Whether a service answers: `python docker/healthy.py URL [a.b=value]`, exit status 0 or 1.

The health checks of docker-compose.airflow.yml. Any answer with a status below 400 will do; with `a.b=value`, the answer must be
JSON that holds that value there. A server at `zookeeper://HOST:PORT` must be part of a quorum. What is wrong is printed to
standard output, which `docker inspect` shows. Standard library only: this runs every few seconds in every container.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Sequence

ZOOKEEPER = "zookeeper://"
TIMEOUT_SECONDS = 25.0  # less than the health checks' own timeout, which the start of Python is part of


def problem(url: str, wanted: str | None) -> str | None:
    """What is wrong with the service; None if nothing is."""
    if url.startswith(ZOOKEEPER):
        return problem_of_zookeeper(url)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            body = answer.read()
    except OSError as error:  # all of urllib's errors, HTTP error statuses included
        return f"{url}: {error}"
    return None if wanted is None else difference(body, wanted)


def problem_of_zookeeper(url: str) -> str | None:
    host, _, port = url.removeprefix(ZOOKEEPER).rpartition(":")
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read()
    except OSError as error:
        return f"{url}: {error}"
    return None if b"Mode: " in answer else f"{url}: {answer.decode(errors='replace').strip()}"


def difference(body: bytes, wanted: str) -> str | None:
    """What the JSON holds instead of the wanted value; None if it holds that."""
    path, _, value = wanted.partition("=")
    try:
        found = json.loads(body)
        for name in path.split("."):
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (ValueError, LookupError, TypeError):
        return f"the answer holds no {path}"
    return None if str(found) == value else f"{path} is {found}, not {value}"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (1, 2):
        print("usage: healthy.py URL [a.b=value]")
        return 2
    found = problem(arguments[0], arguments[1] if len(arguments) == 2 else None)
    print(found or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
