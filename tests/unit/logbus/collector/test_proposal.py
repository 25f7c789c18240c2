"""A log of every format: what is proposed for it is what reads it, and what is to be pasted works as it stands."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.parsing import parser_for
from logbus.pipelines import define_pipeline

WRITTEN = 1_431_864_000  # 17 May 2015, 12:00 UTC

# By name: lines as programs write them, the parser that is proposed, and some of the first row.
LOGS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "access.log": (
        [f'10.0.0.{n} - - [17/May/2015:10:05:0{n} +0000] "GET /{n} HTTP/1.1" 200 1 "-" "curl"' for n in range(3)],
        *("combined", {"host": "10.0.0.0", "status": 200}),
    ),
    "auth.log": (
        [f"May 17 10:05:0{n} combo sshd(pam_unix)[19939]: authentication failure {n}" for n in range(3)],
        *("syslog", {"host": "combo", "program": "sshd(pam_unix)", "pid": "19939"}),
    ),
    "messages": (
        [f'<165>1 2015-05-17T10:05:0{n}.003Z web1 evntslog - ID47 [x@1 a="b"] started' for n in range(3)],
        *("syslog", {"severity": "notice", "host": "web1", "message": "started"}),
    ),
    "nginx.json.log": (
        [
            json.dumps({"msec": f"143185710{n}.000", "remote_addr": "10.0.0.1", "request": "GET / HTTP/1.1", "status": "200"})
            for n in range(3)
        ],
        *("nginx_json", {"host": "10.0.0.1", "method": "GET", "status": 200}),
    ),
    "app.json": ([json.dumps({"ts": 1431857103 + n, "user": n, "ok": True}) for n in range(3)], "json", {}),
    "logfmt.log": ([f"ts=143185710{n}.5 level=info msg=started" for n in range(3)], "logfmt", {}),
    "zookeeper.log": (
        [f"2015-05-17 10:05:0{n},747 - INFO  [QuorumPeer[myid=1]@774] - Notification time out: {n}" for n in range(3)],
        *("regex", {"level": "INFO", "before": None}),
    ),
    "log4j.log": (
        [f"17 May 2015 10:05:0{n},000 [main] WARN  org.example.App - started {n}" for n in range(3)],
        *("regex", {"level": "WARN", "before": "main"}),
    ),
    "spark.log": (
        [f"15/05/17 10:05:0{n} INFO SparkContext: Running Spark version 1.3.{n}" for n in range(3)],
        *("regex", {"level": "INFO", "message": "SparkContext: Running Spark version 1.3.0"}),
    ),
    "hdfs.log": (
        [f"150517 10050{n} 143 INFO dfs.DataNode$PacketResponder: {n} for block blk_38 terminating" for n in range(3)],
        *("regex", {"written": "150517 100500", "before": "143", "level": "INFO"}),
    ),
    "kubelet.log": ([f"I0517 10:05:0{n}.000123       7 controller.go:12] started {n}" for n in range(3)], "lines", {}),
    "epoch.log": ([f"143185710{n} something happened" for n in range(3)], "lines", {}),
    "sales.csv": (
        ["time,user,amount", *(f"2015-05-17T10:05:0{n}Z,jane,{n}.5" for n in range(3))],
        *("csv", {"time": "2015-05-17T10:05:00Z", "user": "jane", "amount": "0.5"}),
    ),
}


def tried(folder: Path, name: str, lines: list[str], *words: str) -> Result:
    log = folder / name
    log.write_text("".join(f"{line}\n" for line in lines))
    os.utime(log, (WRITTEN, WRITTEN))
    return CliRunner().invoke(main, ["try", str(log), *words])


@pytest.mark.parametrize("name", LOGS)
def test_every_format_is_dated_and_parsed_without_an_option(name: str, tmp_path: Path) -> None:
    lines, parse, row = LOGS[name]
    found = json.loads(tried(tmp_path, name, lines, "--json").stdout)
    assert found["trouble"] is None
    assert found["first"].startswith("2015-05-17T10:05:0")
    assert (found["parse"], found["parsed"][parse], found["errors"]) == (parse, len(lines), {})
    assert found["samples"][0].items() >= row.items()


@pytest.mark.parametrize("name", LOGS)
def test_what_is_to_be_pasted_is_taken_as_it_stands(name: str, tmp_path: Path) -> None:
    lines, parse, _ = LOGS[name]
    found = json.loads(tried(tmp_path, name, lines, "--json").stdout)
    asked: list[dict[str, Any]] = []
    exec(
        found["dag"].replace("from logbus.pipelines import hourly_ingest", ""), {"hourly_ingest": lambda **how: asked.append(how)}
    )
    (options,) = asked
    pipeline = define_pipeline(options.pop("pipeline"), **options)
    assert parser_for(pipeline.parse, pipeline.settings).columns.keys() == {*found["columns"]}
    _, register, _ = found["commands"]
    words = shlex.split(register)
    given = json.loads(words[words.index("--settings") + 1]) if "--settings" in words else {}
    assert (words[words.index("--parse") + 1], given) == (parse, found["settings"])


def test_people_see_times_columns_and_what_to_type(tmp_path: Path) -> None:
    lines, _, _ = LOGS["auth.log"]
    shown = tried(tmp_path, "auth.log", lines, "--timezone", "Europe/Berlin")
    assert shown.exit_code == 0
    assert "time      syslog (RFC 3164): 3 of 3 records, from 2015-05-17T08:05:00Z" in shown.stdout
    assert "parse     syslog: 3 of 3 records" in shown.stdout
    assert f"logbus ship {tmp_path}/auth.log --topic auth --timezone Europe/Berlin\n" in shown.stdout
    assert 'hourly_ingest(pipeline="auth", topic="auth", table="auth", parse="syslog")' in shown.stdout


def test_a_log_of_stack_traces_is_to_be_joined(tmp_path: Path) -> None:
    trace = ["2015-05-17 10:05:03 ERROR failed", "\tat Main.run(Main.java:7)", "\tat Main.main(Main.java:1)"]
    apart = json.loads(tried(tmp_path, "app.log", trace * 3, "--json").stdout)
    assert (apart["records"], apart["join_lines"], "--join-lines" in apart["commands"][0]) == (9, True, True)
    joined = json.loads(tried(tmp_path, "app.log", trace * 3, "--join-lines", "--json").stdout)
    assert (joined["records"], joined["parse"], joined["parsed"]["regex"]) == (3, "regex", 3)
    assert joined["samples"][0]["message"].endswith("Main.main(Main.java:1)")


def test_a_log_without_times_says_what_would_tell_and_proposes_nothing(tmp_path: Path) -> None:
    refused = tried(tmp_path, "odd.log", ["on the 22nd at ten: Accepted"] * 3)
    assert refused.exit_code == 1
    assert "such as line 1: 'on the 22nd" in refused.stderr
    assert "To load it" not in refused.stdout
    told = tried(tmp_path, "odd.log", ["at 17.05.2015 10:05:03: Accepted"] * 3, "--time-format", "%d.%m.%Y %H:%M:%S")
    assert "--time-format '%d.%m.%Y %H:%M:%S'" in told.stdout


def test_an_empty_file_and_one_that_is_no_text_are_said(tmp_path: Path) -> None:
    assert "holds no line yet" in tried(tmp_path, "empty.log", []).stdout
    (tmp_path / "program").write_bytes(b"\x7fELF\x00")
    assert "is not a text of lines" in CliRunner().invoke(main, ["try", str(tmp_path / "program")]).stderr


def test_one_parser_can_be_asked_about(tmp_path: Path) -> None:
    lines, _, _ = LOGS["auth.log"]
    found = json.loads(tried(tmp_path, "auth.log", lines, "--parse", "combined", "--json").stdout)
    assert (found["parsed"], found["errors"]) == ({"combined": 0}, {"NotCombinedLogLine": 3})
