"""Logs as programs write them, three lines each, at 10:05:00, 10:05:01 and 10:05:02 UTC on 17 May 2015, and what to make of them.

Made up for the tests. In a `line`, ~ stands for its number: 0, 1 and 2.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BEGIN = datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
WRITTEN = int(BEGIN.replace(hour=12, minute=0).timestamp())  # when the files were last written
COUNT = 3


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """`line`: with ~ for its number. `options`: those that the error names if the format is not recognised without them. `row`:
    some columns of the first row loaded. `key`: the host that the lines name. `header`: the lines before the first record."""

    name: str
    line: str
    parse: str = "regex"
    time_format: str = ""  # by default the one that `options` name, or ISO 8601
    row: dict[str, Any] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # continuation lines, after each of the others
    fraction_ms: int = 0
    has_zone: bool = True
    key: str | None = None
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_format", self.time_format or (self.options[-1] if self.options else "ISO 8601"))

    @property
    def lines(self) -> list[str]:
        own = [[self.line.replace("~", str(number)), *self.more] for number in range(COUNT)]
        return [*self.header, *(line for group in own for line in group)]

    @property
    def times_ms(self) -> list[int]:
        """The records' timestamps; a header has that of the line after it."""
        times = [int(BEGIN.timestamp() + number) * 1000 + self.fraction_ms for number in range(COUNT)]
        return [*times[:1] * len(self.header), *times]

    def write(self, folder: Path) -> Path:
        log = folder / self.name
        log.write_text("".join(f"{line}\n" for line in self.lines))
        os.utime(log, (WRITTEN, WRITTEN))
        return log


FORMATS = [
    LogFormat(
        name="access.log",
        line='10.0.0.7 - - [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/1.1" 200 1 "-" "curl"',
        time_format="access log",
        parse="combined",
        row={"host": "10.0.0.7", "status": 200},
        key="10.0.0.7",
    ),
    LogFormat(
        name="other_vhosts_access.log",
        line='www.example.com:443 10.0.0.7 - - [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/1.1" 200 1 "-" "curl"',
        time_format="access log",
        row={
            "vhost": "www.example.com",
            "port": 443,
            "host": "10.0.0.7",
            "username": None,
            "path": "/0",
            "status": 200,
            "bytes": 1,
        },
        key="10.0.0.7",
    ),
    LogFormat(
        name="forwarded.log",
        line='192.0.2.16, 198.51.100.22 - - [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/1.1" 200 1 "-" "curl"',
        time_format="access log",
        parse="combined",
        row={"host": "192.0.2.16, 198.51.100.22", "ident": None, "username": None, "path": "/0", "agent": "curl"},
        key="192.0.2.16",
    ),
    LogFormat(
        name="nginx_main.log",
        line='192.0.2.16 - jane [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/1.1" 200 1 "-" "Mozilla/5.0 (X11; Linux; rv)" "10.0.0.9"',
        time_format="access log",
        row={
            "host": "192.0.2.16",
            "username": "jane",
            "status": 200,
            "agent": "Mozilla/5.0 (X11; Linux; rv)",
            "rest": '"10.0.0.9"',
        },
        key="192.0.2.16",
    ),
    LogFormat(
        name="traefik.log",
        line='192.0.2.16 - - [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/2.0" 200 1 "-" "curl" 1 "web@docker" "http://10.0.0.9:80" 3ms',
        time_format="access log",
        row={"path": "/0", "agent": "curl", "rest": '1 "web@docker" "http://10.0.0.9:80" 3ms'},
        key="192.0.2.16",
    ),
    LogFormat(
        name="access_by_site.log",
        line='www.example.com 192.0.2.16 - - [17/May/2015:10:05:0~ +0000] "GET /~ HTTP/1.1" 200 1 0.003',
        time_format="access log",
        row={"before": "www.example.com", "host": "192.0.2.16", "ident": None, "bytes": 1, "referer": None, "rest": "0.003"},
    ),
    LogFormat(
        name="auth.log",
        line="May 17 10:05:0~ combo sshd(pam_unix)[19939]: authentication failure ~",
        time_format="syslog (RFC 3164)",
        parse="syslog",
        row={"host": "combo", "program": "sshd(pam_unix)", "pid": "19939"},
        has_zone=False,
        key="combo",
    ),
    LogFormat(
        name="device.log",
        line="May 17 10:05:0~ dropbear[1252]: Password auth: ~",
        time_format="syslog (RFC 3164)",
        parse="syslog",
        row={"host": None, "program": "dropbear", "pid": "1252", "message": "Password auth: 0"},
        has_zone=False,
    ),
    LogFormat(
        name="messages",
        line='<165>1 2015-05-17T10:05:0~.003Z web1 evntslog - ID47 [x@1 a="b"] started',
        time_format="syslog (RFC 5424)",
        parse="syslog",
        row={"severity": "notice", "host": "web1", "message": "started"},
        fraction_ms=3,
        key="web1",
    ),
    LogFormat(
        name="syslog",
        line="2015-05-17T12:05:0~.123456+02:00 web1 systemd[1]: Started ~",
        time_format="syslog (ISO 8601)",
        parse="syslog",
        row={"time": "2015-05-17T10:05:00.123456Z", "host": "web1", "program": "systemd", "pid": "1", "message": "Started 0"},
        fraction_ms=123,
        key="web1",
    ),
    LogFormat(
        name="service.log",
        line="2015-05-17T12:05:0~.250+02:00 INFO worker: item ~",
        row={"level": "INFO", "message": "worker: item 0"},
        fraction_ms=250,
    ),
    LogFormat(
        name="nginx.json",
        line='{"time_iso8601": "2015-05-17T10:05:0~+00:00", "remote_addr": "10.0.0.1", "request": "GET / HTTP/1.1", "status": "200"}',
        time_format="JSON",
        parse="nginx_json",
        row={"host": "10.0.0.1", "method": "GET", "status": 200},
    ),
    LogFormat(
        name="nginx_msec.json",
        line='{"msec": "143185710~.250", "remote_addr": "10.0.0.1", "request_time": "0.012", "status": "200"}',
        time_format="JSON",
        parse="nginx_json",
        row={"host": "10.0.0.1", "request_time": 0.012},
        fraction_ms=250,
    ),
    LogFormat(
        name="log4j.log",
        line="17 May 2015 10:05:0~,007 [main] WARN  org.example.App - started ~",
        time_format="DD Mon YYYY",
        row={"level": "WARN", "before": "[main]", "message": "org.example.App - started 0"},
        fraction_ms=7,
        has_zone=False,
    ),
    LogFormat(
        name="zookeeper.log",
        line="2015-05-17 10:05:0~,747 - INFO  [QuorumPeer[myid=1]@774] - Notification time out: ~",
        row={"level": "INFO", "before": None, "message": "[QuorumPeer[myid=1]@774] - Notification time out: 0"},
        fraction_ms=747,
        has_zone=False,
    ),
    LogFormat(
        name="spark.log",
        line="15/05/17 10:05:0~ INFO SparkContext: Running Spark version 1.3.~",
        time_format="YY/MM/DD",
        row={"level": "INFO", "message": "SparkContext: Running Spark version 1.3.0"},
        has_zone=False,
    ),
    LogFormat(
        name="hdfs.log",
        line="150517 10050~ 143 INFO dfs.DataNode$PacketResponder: ~ for block blk_38 terminating",
        time_format="YYMMDD HHMMSS",
        row={"written": "150517 100500", "before": "143", "level": "INFO"},
        has_zone=False,
    ),
    LogFormat(
        name="kubelet.log",
        line="W0517 10:05:0~.000123       7 controller.go:12] started ~",
        time_format="klog",
        row={"level": "W", "thread": "7", "source": "controller.go:12", "message": "started 0"},
        has_zone=False,
    ),
    LogFormat(
        name="apache_error.log",
        line="[Sun May 17 10:05:0~.000123 2015] [core:error] [pid 7:tid 12] [client 10.0.0.1:4711] File ~ does not exist",
        time_format="Apache's error log",
        row={"module": "core", "level": "error", "client": "10.0.0.1:4711", "message": "File 0 does not exist"},
        has_zone=False,
    ),
    LogFormat(
        name="nginx_error.log",
        line='2015/05/17 10:05:0~ [error] 7#7: *1 open() "/~" failed',
        time_format="YY/MM/DD",
        row={"level": "error", "message": '7#7: *1 open() "/0" failed'},
        has_zone=False,
    ),
    LogFormat(
        name="python.log",
        line="2015-05-17 10:05:0~,123 - shop.orders - WARNING - order ~ is late",
        row={"before": "shop.orders", "level": "WARNING", "message": "order 0 is late"},
        fraction_ms=123,
        has_zone=False,
    ),
    LogFormat(
        name="server.log",
        line="[2015-05-17 10:05:0~,123] INFO [KafkaServer id=0] started ~ (kafka.server.KafkaServer)",
        row={"level": "INFO", "before": None, "message": "[KafkaServer id=0] started 0 (kafka.server.KafkaServer)"},
        fraction_ms=123,
        has_zone=False,
    ),
    LogFormat(
        name="postgresql.log",
        line="2015-05-17 10:05:0~.123 UTC [17] app@shop LOG:  duration: ~ ms",
        row={"before": "[17] app@shop", "level": "LOG", "message": "duration: 0 ms"},
        fraction_ms=123,
    ),
    LogFormat(
        name="traces.log",
        line="2015-05-17 10:05:0~ ERROR Main - failed",
        more=("java.lang.IllegalStateException: no", "\tat Main.run(Main.java:7)", "\tat Main.main(Main.java:1)"),
        row={
            "level": "ERROR",
            "message": "Main - failed\njava.lang.IllegalStateException: no\n\tat Main.run(Main.java:7)\n\tat Main.main(Main.java:1)",
        },
        has_zone=False,
    ),
    LogFormat(
        name="logfmt.log",
        line="ts=143185710~.5 level=info msg=started",
        time_format="seconds since 1970",
        parse="logfmt",
        fraction_ms=500,
    ),
    LogFormat(
        name="logfmt_iso.log",
        line='time=2015-05-17T10:05:0~Z level=info msg="started up"',
        parse="logfmt",
    ),
    LogFormat(
        name="vmware.log",
        line="2015-05-17T10:05:0~Z In(05) vmx - app=vmx pid=~ -- the disk is full",
        parse="lines",
        row={"line": "2015-05-17T10:05:00Z In(05) vmx - app=vmx pid=0 -- the disk is full"},
    ),
    LogFormat(
        name=f"web-5d78-x2x_default_web-{'0f' * 32}.log",
        line="2015-05-17T10:05:0~.123456789Z stdout F item ~, user jane, done",
        parse="lines",
        row={"line": "2015-05-17T10:05:00.123456789Z stdout F item 0, user jane, done"},
        fraction_ms=123,
    ),
    LogFormat(name="seconds.log", line="143185710~ something happened", time_format="seconds since 1970", parse="lines"),
    LogFormat(name="milli.log", line="143185710~250 something", time_format="seconds since 1970", parse="lines", fraction_ms=250),
    LogFormat(
        name="micro.log", line="143185710~250000 something", time_format="seconds since 1970", parse="lines", fraction_ms=250
    ),
    LogFormat(
        name="nano.log", line="143185710~250000000 something", time_format="seconds since 1970", parse="lines", fraction_ms=250
    ),
    LogFormat(
        name="app.json",
        line='{"@timestamp": "2015-05-17T10:05:0~.5Z", "host": {"name": "web2"}, "user": ~}',
        time_format="JSON",
        parse="json",
        row={"user": 0},
        fraction_ms=500,
        key="web2",
    ),
    LogFormat(
        name="orders.json",
        line='{"id": 1234567890, "took": 0.25, "created": 143185710~250, "hostname": "web3"}',
        time_format="the field created",
        parse="json",
        row={"took": 0.25},
        fraction_ms=250,
        key="web3",
        options=("--time-field", "created"),
    ),
    LogFormat(
        name="events.json",
        line='{"event": {"raised": "17.05.2015 10:05:0~", "kind": "login"}}',
        time_format="the field event.raised",
        parse="json",
        has_zone=False,
        options=("--time-field", "event.raised", "--time-format", "%d.%m.%Y %H:%M:%S"),
    ),
    LogFormat(
        name="sales.csv",
        header=("time,user,amount",),
        line="2015-05-17T10:05:0~Z,jane,~.5",
        parse="csv",
        row={"time": "2015-05-17T10:05:00Z", "user": "jane", "amount": "0.5"},
    ),
    LogFormat(
        name="export.csv",
        header=("Time,User Name,Amount (EUR),ctid,user name",),
        line="2015-05-17T10:05:0~Z,jane,~.5,7,j",
        parse="csv",
        row={"time": "2015-05-17T10:05:00Z", "user_name": "jane", "amount_eur": "0.5", "ctid_": "7", "user_name_2": "j"},
    ),
    LogFormat(
        name="u_ex150517.log",
        header=(
            "#Software: Microsoft Internet Information Services 10.0",
            "#Version: 1.0",
            "#Date: 2015-05-17 10:05:00",
            "#Fields: date time cs-method cs-uri-stem cs(User-Agent)",
        ),
        line="2015-05-17 10:05:0~ GET /~ -",
        parse="csv",
        row={"date": "2015-05-17", "time": "10:05:00", "cs_method": "GET", "cs_uri_stem": "/0", "cs_user_agent": None},
        has_zone=False,
    ),
    LogFormat(
        name="conn.log",
        header=(
            "#separator \\x09",
            "#set_separator\t,",
            "#empty_field\t(empty)",
            "#unset_field\t-",
            "#path\tconn",
            "#open\t2015-05-17-10-05-00",
            "#fields\tts\tuid\tid.orig_h\tservice",
            "#types\ttime\tstring\taddr\tstring",
        ),
        line="143185710~.250000\tC~\t192.0.2.16\t-",
        time_format="seconds since 1970",
        parse="csv",
        row={"ts": "1431857100.250000", "uid": "C0", "id_orig_h": "192.0.2.16", "service": None},
        fraction_ms=250,
    ),
    LogFormat(
        name="visits.csv",
        header=("user;pages;at",),
        line="jane;~;143185710~",
        parse="csv",
        row={"user": "jane", "pages": "0", "at": "1431857100"},
        options=("--time-format", "%s"),
    ),
    LogFormat(
        name="dotted.log",
        line="17.05.2015 10:05:0~ started ~",
        parse="lines",
        has_zone=False,
        options=("--time-format", "%d.%m.%Y %H:%M:%S"),
    ),
    LogFormat(
        name="american.log",
        line="05/17/2015 10:05:0~ AM started ~",
        parse="lines",
        has_zone=False,
        options=("--time-format", "%m/%d/%Y %I:%M:%S %p"),
    ),
    LogFormat(
        name="postgresql_saopaulo.log",
        line="2015-05-17 07:05:0~.123 -03 [17] app@shop LOG:  duration: ~ ms",
        row={"written": "2015-05-17 07:05:00.123 -03", "before": "[17] app@shop", "level": "LOG"},
        fraction_ms=123,
    ),
    LogFormat(
        name="utc_plus.log",
        line="2015-05-17 18:05:0~ UTC+8 INFO started ~",
        row={"written": "2015-05-17 18:05:00 UTC+8", "level": "INFO", "message": "started 0"},
    ),
    LogFormat(
        name="php_errors.log",
        line="[17-May-2015 12:05:0~ Europe/Berlin] PHP Warning:  item ~ is missing",
        time_format="DD Mon YYYY",
        row={"written": "17-May-2015 12:05:00 Europe/Berlin", "before": "PHP", "message": "item 0 is missing"},
    ),
    LogFormat(
        name="zones.json",
        line='{"time": "2015-05-17 12:05:0~+02", "user": ~}',
        time_format="JSON",
        parse="json",
        row={"user": 0},
    ),
    LogFormat(
        name="distribution.tsv",
        line="2015-05-17\t10:05:0~\tFRA2\t~\t192.0.2.7",
        parse="csv",
        row={"field_3": "FRA2", "field_4": "0"},
        has_zone=False,
    ),
    LogFormat(
        name="redis.log",
        line="1:M 17 May 2015 10:05:0~.018 * Ready ~",
        parse="lines",
        fraction_ms=18,
        has_zone=False,
        options=("--time-format", "%d %b %Y %H:%M:%S.%f"),
    ),
    LogFormat(
        name="backup.log",
        line="Sun May 17 10:05:0~ UTC 2015 backup ~",
        parse="lines",
        options=("--time-format", "%a %b %d %H:%M:%S %Z %Y"),
    ),
    LogFormat(
        name="proxy.log",
        line="17-05-2015 13:05:0~ +0300 PROXY.3128 0000~",
        parse="lines",
        options=("--time-format", "%d-%m-%Y %H:%M:%S %z"),
    ),
    LogFormat(
        name="game.log",
        line='L 05/17/2015 - 10:05:0~: Bad Rcon: "rcon 1146003691" ~',
        parse="lines",
        has_zone=False,
        options=("--time-format", "%m/%d/%Y - %H:%M:%S"),
    ),
    LogFormat(
        name="cluster.log",
        line="- 143185710~ 2015.05.17 node7 May 17 12:05:0~ node7/node7 kernel: item ~",
        parse="lines",
        options=("--time-format", "%s"),
    ),
    LogFormat(
        name="steps.log",
        line="20150517-10:5:~:444|Step|30002312|item ~",
        parse="csv",
        fraction_ms=444,
        has_zone=False,
        options=("--time-format", "%Y%m%d-%H:%M:%S"),
    ),
]
