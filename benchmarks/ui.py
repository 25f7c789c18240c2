"""How long the pages' data takes: 50 topics, a week of hours, 20 groups; each route of a real Airflow api-server, over HTTP.

First of a process: an api-server that has just started, and has served none of our pages. First after a minute: no request for
longer than any answer is kept; each round another page comes first. Cold: what was read is too old and is read again, during the
request or right after it. Warm: there has just been a request. Twenty browsers at once are measured cold, too, and then again
warm. How many requests a page costs the broker is counted by the broker, with one partition per topic and with eight: the fewest
of three looks.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from logbus.web.reading import KEPT_SECONDS, STALE_SECONDS_MAX
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.ui_server import Place, seeded

TARGET, SAME = Target(ours_max=300), Target(ratio_max=1.1)
PARTITIONS_FEW, PARTITIONS_MANY = 1, 8
COLD_LOOKS, WARM_LOOKS, BROWSERS = 3, 10, 20  # per round
COUNTED_LOOKS = 3
LARGEST = "overview"
SETTLED_SECONDS = 2.0  # after a request: reads in the background are done
COLD_SECONDS = KEPT_SECONDS + 1.0  # after a request: what was read for it, up to a second later, is too old
REQUESTS = "kafka_network_requestmetrics_requests_total"

Paths = Mapping[str, str]


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    figures: list[Figure] = []
    requests: dict[str, dict[int, float]] = {}
    for partitions in (PARTITIONS_FEW, PARTITIONS_MANY):
        console.print(f"seeding 50 topics of {partitions} partition(s) ...")
        with seeded(partitions) as place:
            with place.api_server() as client:
                for name, path in place.paths.items():
                    requests.setdefault(name, {})[partitions] = requests_of(client, place.broker, path)
                if partitions == PARTITIONS_MANY:
                    figures += times(client, place.paths, scale)
            if partitions == PARTITIONS_MANY:
                figures[:0] = first_of_process(place, scale)
    for name, counted in requests.items():
        few, many = counted[PARTITIONS_FEW], counted[PARTITIONS_MANY]
        against = f"{PARTITIONS_FEW} partition a topic"
        name = f"{name}: a cold look: requests"
        figures.append(figure(name, "requests", ours=[many], peer=[few], target=SAME, against=against))
    return figures


def times(client: httpx.Client, paths: Paths, scale: Scale) -> Iterator[Figure]:
    """Each case of each page: median and worst, in milliseconds."""
    for name, first in first_after_a_minute(client, paths, scale).items():
        yield from spread(f"{name}, first after a minute", first)
    for name, path in paths.items():
        yield from spread(f"{name}, cold", [cold_look(client, path) for _ in range(COLD_LOOKS * scale.rounds)])
        yield from spread(f"{name}, warm", [look(client, path) for _ in range(WARM_LOOKS * scale.rounds)])
    cold, warm = [], []
    for _ in range(scale.rounds):
        time.sleep(COLD_SECONDS)
        cold += together(client, paths[LARGEST])
        warm += together(client, paths[LARGEST])
    yield from spread(f"{LARGEST}, cold, {BROWSERS} browsers at once", cold)
    yield from spread(f"{LARGEST}, warm, {BROWSERS} browsers at once", warm)


def spread(name: str, found: Sequence[float]) -> Iterator[Figure]:
    yield figure(f"{name}: median", "ms", ours=found, target=TARGET)
    yield figure(f"{name}: worst of {len(found)}", "ms", ours=[max(found)], target=TARGET)


def first_of_process(place: Place, scale: Scale) -> Iterator[Figure]:
    found = []
    for _ in range(scale.rounds):
        with place.api_server() as client:
            found.append(look(client, place.paths[LARGEST]))
    yield from spread(f"{LARGEST}, first of a process", found)


def first_after_a_minute(client: httpx.Client, paths: Paths, scale: Scale) -> dict[str, list[float]]:
    """By page; one after the other, each round starting with another page, because a page may reuse what the last one read."""
    found: dict[str, list[float]] = {name: [] for name in paths}
    names = list(paths)
    for begin in range(scale.rounds):
        time.sleep(STALE_SECONDS_MAX + 1)
        for name in (names * 2)[begin % len(names) :][: len(names)]:
            found[name].append(look(client, paths[name]))
    return found


def look(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return (time.perf_counter() - began) * 1000


def cold_look(client: httpx.Client, path: str) -> float:
    time.sleep(COLD_SECONDS)
    return look(client, path)


def together(client: httpx.Client, path: str) -> list[float]:
    with ThreadPoolExecutor(BROWSERS) as browsers:
        return list(browsers.map(lambda _: look(client, path), range(BROWSERS)))


def requests_of(client: httpx.Client, broker: LogbusBroker, path: str) -> float:
    """The fewest requests that the broker got for a cold page; the connections are already open.

    The fewest, since the client library looks up the coordinator of some groups twice when two of its threads want to know it
    at once: for 20 groups the broker got 18 to 26 such requests, by chance and with any number of partitions.
    """
    return min(requests_of_look(client, broker, path) for _ in range(COUNTED_LOOKS))


def requests_of_look(client: httpx.Client, broker: LogbusBroker, path: str) -> float:
    look(client, path)
    time.sleep(COLD_SECONDS)
    before = request_count(broker)
    look(client, path)
    time.sleep(SETTLED_SECONDS)
    return request_count(broker) - before


def request_count(broker: LogbusBroker) -> float:
    """All requests so far. Clients that refresh their metadata are included, but send far fewer than looks do."""
    with urllib.request.urlopen(f"{broker.settings['logbus.metrics.listener']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REQUESTS + "{"))
