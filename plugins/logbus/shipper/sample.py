"""A small access log for users who have none at hand: made up, but odd in the ways real ones are.

A web site's traffic: fewest visitors at four in the morning, some of whom return often; crawlers; missing pages; malformed
requests. Lines are written when a request ends, so they are slightly out of order.
The same arguments give the same bytes on every machine and Python version: only `random.Random.random` is used.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from random import Random

from logbus.atomic_write import replace_atomically
from logbus.model import LATENESS_DEFAULT, Grid
from logbus.parsing.times import MONTH_NAMES

CLOSED_FOR = LATENESS_DEFAULT  # a sample's last hour has been closed for this long, so that a load need not wait for it
MALFORMED_SHARE = 0.0005
CRAWLER_SHARE = 0.22  # of visits; about what small public sites see
QUIET_HOUR_UTC = 4
NIGHT_SHARE = 0.25  # of the evening's traffic
SLOWEST_REQUEST_SECONDS = 4.0

_PAGES = (
    "/", "/blog/", "/blog/tags/linux", "/blog/tags/logs", "/articles/ssh-tunnels/", "/articles/log-rotation/", "/projects/",
    "/projects/collector/", "/about.html", "/contact.html", "/search?q=kafka%20offsets", "/feed.xml", "/downloads/",
)  # fmt: skip
_ASSETS = ("/style.css", "/favicon.ico", "/images/logo.png", "/images/figure1.png", "/images/figure2.jpg", "/js/site.js")
_MISSING = ("/wp-login.php", "/admin/", "/old/index.html", "/.env", "/apple-touch-icon.png", "/blog/drafts/\\xe2\\x80\\x93")
_REFERERS = (
    "-",
    "-",
    "https://www.example.org/",
    "https://search.example.com/?q=log+files",
    "https://news.example.net/item?id=4711",
)
_BROWSERS = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/42.0.2311.135 Safari/537.36",
    "Mozilla/5.0 (Windows NT 6.1; WOW64; rv:37.0) Gecko/20100101 Firefox/37.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 8_3 like Mac OS X) AppleWebKit/600.1.4 (KHTML, like Gecko) Version/8.0 Mobile/12F70",
    'Mozilla/5.0 (compatible; \\"quoted\\" agent; +https://example.org/a)',
    "-",
)
_CRAWLERS = (
    "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://www.example.com/bot.html)",
    "crawler.example.net/1.0 (+https://crawler.example.net/about)",
    "UniversalFeedParser/4.2-pre-314-svn +http://feedparser.org/",
)
_MALFORMED = ('{host} - - [{time}] "GET /unfinished', "\\x16\\x03\\x01\\x00 a port scan", "{host} - - -")


def last_closed_hour(now: datetime) -> datetime:
    """Where a sample of the last hours ends: the end of the newest hour that a pipeline with the default lateness may load."""
    return Grid().floor(now - LATENESS_DEFAULT - CLOSED_FOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visitor:
    host: str
    agent: str
    is_crawler: bool


def write_sample(path: Path, *, lines: int = 20_000, hours: int = 24, seed: int = 2011, end: datetime) -> None:
    """Write `lines` lines over the `hours` hours before `end`, as if written then; the file exists complete or not at all."""
    replace_atomically(path, "".join(sample_lines(lines=lines, hours=hours, seed=seed, end=end)).encode())
    os.utime(path, (end.timestamp(), end.timestamp()))


def sample_lines(*, lines: int, hours: int, seed: int, end: datetime) -> Iterator[str]:
    """The lines with their newlines, in the order a server would have written them."""
    if lines < 1 or hours < 1:
        raise ValueError(f"a sample needs at least one line and one hour, not {lines} and {hours}")
    chance = Random(seed)
    started = end - timedelta(hours=hours)
    seconds = _arrival_seconds(chance, lines=lines, hours=hours, started=started)
    visitors = [_visitor(chance) for _ in range(max(8, lines // 12))]
    unwritten: list[tuple[float, int, str]] = []
    for number, second in enumerate(seconds):
        line = _line(chance, visitors, started + timedelta(seconds=int(second)))
        heappush(unwritten, (second + chance.random() ** 6 * SLOWEST_REQUEST_SECONDS, number, line))
        while unwritten and unwritten[0][0] <= second:
            yield heappop(unwritten)[2]
    while unwritten:
        yield heappop(unwritten)[2]


def _arrival_seconds(chance: Random, *, lines: int, hours: int, started: datetime) -> list[float]:
    """Sorted times of requests in seconds after the start, denser where the day is busier; every hour has at least one."""
    weights = [_weight((started + timedelta(hours=hour)).hour) for hour in range(hours)]
    ahead = [hour * 3600 + chance.random() * 3600 for hour in range(min(hours, lines))]
    cumulative = list(accumulate(weights))
    for _ in range(lines - len(ahead)):
        hour = min(bisect_right(cumulative, chance.random() * cumulative[-1]), hours - 1)
        ahead.append(hour * 3600 + chance.random() * 3600)
    return sorted(ahead)


def _weight(hour: int) -> float:
    swing = (1 - math.cos((hour - QUIET_HOUR_UTC) / 24 * 2 * math.pi)) / 2
    return NIGHT_SHARE + (1 - NIGHT_SHARE) * round(swing, 6)


def _visitor(chance: Random) -> _Visitor:
    is_crawler = chance.random() < CRAWLER_SHARE
    host = ".".join(str(1 + int(chance.random() * 254)) for _ in range(4))
    if chance.random() < 0.05:
        host = f"dsl-{int(chance.random() * 1000)}.example.net"
    return _Visitor(host=host, agent=_one_of(chance, _CRAWLERS if is_crawler else _BROWSERS), is_crawler=is_crawler)


def _line(chance: Random, visitors: Sequence[_Visitor], moment: datetime) -> str:
    visitor = visitors[int(chance.random() ** 2 * len(visitors))]  # a few return often
    written = f"{moment.day:02d}/{MONTH_NAMES[moment.month - 1]}/{moment.year}:{moment:%H:%M:%S} +0000"
    if chance.random() < MALFORMED_SHARE:
        return _one_of(chance, _MALFORMED).format(host=visitor.host, time=written) + "\n"
    path, status, size = _request(chance, visitor)
    method = "HEAD" if visitor.is_crawler and chance.random() < 0.1 else "GET"
    referer = "-" if visitor.is_crawler else _one_of(chance, _REFERERS)
    length = "-" if status == 304 or method == "HEAD" else str(size)
    return f'{visitor.host} - - [{written}] "{method} {path} HTTP/1.1" {status} {length} "{referer}" "{visitor.agent}"\n'


def _request(chance: Random, visitor: _Visitor) -> tuple[str, int, int]:
    """Path, status and bytes of one response."""
    draw = chance.random()
    if draw < 0.025:
        return _one_of(chance, _MISSING), 404, 331
    if draw < 0.027:
        return _one_of(chance, _PAGES), 500, 612
    path = _one_of(chance, _PAGES if visitor.is_crawler or draw < 0.45 else _ASSETS)
    status = 304 if not visitor.is_crawler and chance.random() < 0.08 else 200
    return path, status, 200 + int(chance.random() ** 3 * 60_000)


def _one_of(chance: Random, choices: Sequence[str]) -> str:
    return choices[int(chance.random() * len(choices))]
