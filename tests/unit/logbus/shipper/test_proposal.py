"""A log of every format: the proposed settings read it, and the commands to paste work verbatim."""

from __future__ import annotations

import gzip
import json
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.model import Pipeline
from logbus.parsing import parser_for
from logbus.pipelines import define_pipeline

from tests.support.log_formats import FORMATS, WRITTEN, LogFormat

AUTH = next(log_format for log_format in FORMATS if log_format.name == "auth.log")


def proposed(folder: Path, name: str, lines: list[str], *words: str) -> Any:
    return json.loads(tried(folder, name, lines, *words, "--json").stdout)


def tried(folder: Path, name: str, lines: list[str], *words: str, written: float = WRITTEN) -> Result:
    log = folder / name
    log.write_text("".join(f"{line}\n" for line in lines))
    os.utime(log, (written, written))
    environment = {"LOGBUS_REGISTRY_URL": "http://127.0.0.1:8081"}  # as `logbus up` sets it: of no matter to a file
    return CliRunner(env=environment).invoke(main, ["try", str(log), *words])


@pytest.mark.parametrize("log_format", FORMATS, ids=lambda log_format: log_format.name)
def test_what_is_to_be_pasted_is_taken_as_it_stands(log_format: LogFormat, tmp_path: Path) -> None:
    """What the commands do is tested with a broker and Spark in integration/pipeline/test_any_log.py."""
    proposal = proposed(tmp_path, log_format.name, log_format.lines, *log_format.options)
    assert (proposal["trouble"], proposal["time_format"], proposal["parse"]) == (None, [log_format.time_format], log_format.parse)
    assert proposal["samples"][0].items() >= log_format.row.items()
    pipelines: list[Pipeline] = []
    hourly_ingest = {"hourly_ingest": lambda *, pipeline, **options: pipelines.append(define_pipeline(pipeline, **options))}
    exec(proposal["dag"].replace("from logbus.pipelines import hourly_ingest", ""), hourly_ingest)
    (pipeline,) = pipelines
    columns = parser_for(pipeline.parse, pipeline.settings).columns.keys()
    assert columns <= {*proposal["columns"]} if pipeline.settings.get("infer") else columns == {*proposal["columns"]}
    ship, register, _ = proposal["commands"]
    assert {*shlex.split(ship)[5:]} == {*log_format.options, *(["--join-lines"] if log_format.more else [])}
    words = shlex.split(register)
    given = json.loads(words[words.index("--settings") + 1]) if "--settings" in words else {}
    assert (words[words.index("--parse") + 1], given) == (log_format.parse, proposal["settings"])


def test_times_columns_and_what_to_type_are_shown(tmp_path: Path) -> None:
    shown = tried(tmp_path, "auth.log", AUTH.lines, "--timezone", "Europe/Berlin")
    assert shown.exit_code == 0
    assert "time      syslog (RFC 3164): 3 of 3 records, from 2015-05-17T08:05:00Z" in shown.stdout
    assert "parse     syslog: 3 of 3 records" in shown.stdout
    assert f"logbus ship {tmp_path}/auth.log --topic auth --timezone Europe/Berlin\n" in shown.stdout
    assert 'hourly_ingest(pipeline="auth", topic="auth", table="auth", parse="syslog")' in shown.stdout


@pytest.mark.parametrize("option", [(), ("--join-lines",)], ids=["without the option", "with it"])
def test_a_log_of_stack_traces_is_joined_before_a_parser_is_chosen(option: tuple[str, ...], tmp_path: Path) -> None:
    """Two thirds of the lines fit no parser but `lines`: the parser must be chosen for the joined records."""
    trace = ["2015-05-17 10:05:03 ERROR failed", "\tat Main.run(Main.java:7)", "\tat Main.main(Main.java:1)"]
    proposal = proposed(tmp_path, "app.log", trace * 3, *option)
    assert (proposal["records"], proposal["join_lines"], "--join-lines" in proposal["commands"][0]) == (3, True, True)
    assert (proposal["parse"], proposal["parsed"]["regex"]) == ("regex", 3)
    assert proposal["samples"][0]["message"].endswith("Main.main(Main.java:1)")


def test_that_lines_are_joined_is_shown(tmp_path: Path) -> None:
    shown = tried(tmp_path, "app.log", ["2015-05-17 10:05:03 ERROR failed", "\tat Main.run(Main.java:7)"] * 3)
    assert "3 lines that continue the one before are joined to it (--join-lines)" in shown.stdout
    assert "parse     regex: 3 of 3 records" in shown.stdout


def test_times_ahead_of_now_are_reported_with_the_likely_cause(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    lines = [f"{now + timedelta(hours=hours):%Y-%m-%d %H:%M:%S} INFO x" for hours in (-3, -3, 3, 3)]
    shown = tried(tmp_path, "app.log", lines, written=now.timestamp())
    assert "2 records more than an hour ahead of now" in shown.stdout
    assert ("--timezone" in shown.stdout, shown.exit_code) == (True, 0)
    refused = tried(tmp_path, "app.log", lines[1:], written=now.timestamp())
    assert (refused.exit_code, "To load it" in refused.stdout) == (1, False)
    assert "2 of its first 3 times are more than an hour ahead of now" in refused.stderr


def test_a_few_times_months_away_from_the_others_are_warned_of(tmp_path: Path) -> None:
    lines = [*(f"2015-05-17 10:05:{second:02d} INFO x" for second in range(30)), "2009-01-01 00:00:00 INFO the clock was lost"]
    assert "warning: 1 record months away from the others, the first on 2009-01-01" in tried(tmp_path, "app.log", lines).stdout
    assert proposed(tmp_path, "app.log", lines)["months_away"] == 1


@pytest.mark.parametrize(
    ("line", "level", "before", "message"),
    [
        ("2015-05-17 10:05:03 INFO [main] org.example.App - started", "INFO", None, "[main] org.example.App - started"),
        ("2015-05-17 10:05:03 [7] [main] INFO started", "INFO", "[7] [main]", "started"),
        ("2015-05-17 10:05:03 [INFO] (main) started", "INFO", None, "(main) started"),
        ("2015-05-17 10:05:03.123 | ERROR    | app:run:7 - -1 left", "ERROR", None, "app:run:7 - -1 left"),
        ("2015-05-17 10:05:03 INFO: {'a': 1}", "INFO", None, "{'a': 1}"),
        ("2015-05-17T10:05:03.123+02:00  WARN 7 --- [main] c.e.App : slow", "WARN", None, "7 --- [main] c.e.App : slow"),
        ("2015-05-17 10:05:03 INFO - -1 is left", "INFO", None, "-1 is left"),
    ],
)
def test_nothing_of_a_message_is_lost_to_the_pattern(
    line: str, level: str, before: str | None, message: str, tmp_path: Path
) -> None:
    proposal = proposed(tmp_path, "app.log", [line] * 3)
    row = proposal["samples"][0]
    assert (row["level"], row["before"], row["message"]) == (level, before, message)


def test_a_log_without_times_is_refused_with_the_options_that_may_help(tmp_path: Path) -> None:
    refused = tried(tmp_path, "odd.log", ["on the 22nd at ten: Accepted"] * 3)
    assert refused.exit_code == 1
    assert "such as line 1: 'on the 22nd" in refused.stderr
    assert "To load it" not in refused.stdout
    shown = tried(tmp_path, "odd.log", ["at 17.05.2015 10:05:03: Accepted"] * 3, "--time-format", "%d.%m.%Y %H:%M:%S")
    assert "--time-format '%d.%m.%Y %H:%M:%S'" in shown.stdout


def test_an_empty_file_and_one_that_is_not_text_are_reported(tmp_path: Path) -> None:
    assert "holds no lines yet" in tried(tmp_path, "empty.log", []).stdout
    (tmp_path / "program").write_bytes(b"\x7fELF\x00")
    assert "is not a text file" in CliRunner().invoke(main, ["try", str(tmp_path / "program")]).stderr


def test_of_a_file_that_ends_in_the_middle_of_its_compression_what_can_be_read_is_looked_at(tmp_path: Path) -> None:
    packed = tmp_path / "app.log.gz"
    text = "".join(f"2015-05-17T10:05:03Z INFO line {number}\n" for number in range(900))
    packed.write_bytes(gzip.compress(text.encode())[:-12])
    shown = CliRunner().invoke(main, ["try", str(packed), "--accept-times"])
    assert shown.exit_code == 0, shown.output
    assert "the compressed file is cut off" in shown.stdout
    assert "sent" not in shown.output
    packed.write_bytes(packed.read_bytes()[:8])
    refused = CliRunner().invoke(main, ["try", str(packed)])
    assert (refused.exit_code, "is damaged: not one line of it can be unpacked" in refused.stderr) == (1, True)


def test_one_parser_can_be_asked_about_and_is_not_proposed_if_it_does_not_fit(tmp_path: Path) -> None:
    proposal = proposed(tmp_path, "auth.log", AUTH.lines, "--parse", "combined")
    assert (proposal["parsed"], proposal["errors"]) == ({"combined": 0}, {"NotCombinedLogLine": 3})
    assert "combined reads 0 of the first 3 records" in proposal["trouble"]
    shown = tried(tmp_path, "auth.log", AUTH.lines, "--parse", "combined")
    assert (shown.exit_code, "To load it" in shown.stdout) == (1, False)


def test_a_log_that_is_not_utf_8_is_to_be_converted(tmp_path: Path) -> None:
    log = tmp_path / "latin1.log"
    log.write_bytes("".join(f"2015-05-17 10:05:03 café {number}\n" for number in range(40)).encode("latin-1"))
    shown = CliRunner().invoke(main, ["try", str(log), "--accept-times"])
    assert (shown.exit_code, "To load it" in shown.stdout) == (1, False)
    assert "40 of the first 40 records are not UTF-8" in shown.stderr
    assert "iconv -f ISO-8859-1 -t UTF-8" in shown.stderr
    as_bytes = CliRunner().invoke(main, ["try", str(log), "--parse", "raw", "--accept-times"])
    assert (as_bytes.exit_code, "parse     raw: 40 of 40 records" in as_bytes.stdout) == (0, True)


def test_a_zone_that_is_not_read_is_named(tmp_path: Path) -> None:
    lines = ["2015-05-17 10:05:03.123 CEST [0] LOG:  x"] * 3
    assert "Its zone CEST is not read, because such names are ambiguous" in tried(tmp_path, "pg.log", lines).stderr
    assert "from 2015-05-17T08:05:03.123" in tried(tmp_path, "pg.log", lines, "--timezone", "Europe/Berlin").stdout


def test_times_far_from_the_files_own_are_refused_unless_they_are_accepted(tmp_path: Path) -> None:
    lines = ["05/07/14 10:05:03 INFO x"] * 3  # the 7th of May, or the 5th of July
    refused = tried(tmp_path, "app.log", lines)
    assert (refused.exit_code, "To load it" in refused.stdout) == (1, False)
    assert "the newest of its times is 2005-07-14, 3,594 days before the file was last written (2015-05-17)" in refused.stderr
    accepted = tried(tmp_path, "app.log", lines, "--accept-times")
    assert (accepted.exit_code, "--topic app --accept-times" in accepted.stdout) == (0, True)
    later = tried(tmp_path, "app.log", ["2016-05-17 10:05:03 INFO x"])
    assert "365 days after the file was last written" in later.stderr


def test_the_newest_time_of_a_file_is_looked_for_at_its_end(tmp_path: Path) -> None:
    lines = [*["2013-05-17 10:05:03 INFO x"] * 1000, "2015-05-17 10:05:03 INFO x"]
    assert tried(tmp_path, "app.log", lines).exit_code == 0


def test_the_columns_that_a_load_would_infer_are_shown(tmp_path: Path) -> None:
    lines = [f'{{"ts": "2015-05-17T10:05:0{number}Z", "user": {number}, "ok": true}}' for number in range(3)]
    proposal = proposed(tmp_path, "app.json", lines)
    assert (proposal["settings"], proposal["columns"]) == ({"infer": True}, ["ts", "user", "ok", "_rest"])
    assert proposal["samples"][1] == {"ts": "2015-05-17T10:05:01Z", "user": 1, "ok": True, "_rest": None}


@pytest.mark.parametrize(
    ("rest", "parse"),
    [
        ('level=info msg="a, b; c = d" debug', "logfmt"),
        ("level=info msg=the disk is full", "lines"),
        ("level=info msg=one pid=7 msg=two", "lines"),
        ("auth failure; user=jane; rhost=web1", "lines"),
        ("user jane, role admin, from web1", "lines"),
        ("jane,admin,web1", "csv"),
    ],
)
def test_prose_is_no_pairs_and_no_fields(rest: str, parse: str, tmp_path: Path) -> None:
    lines = [f"{'time=' if '=' in rest else ''}2015-05-17T10:05:{second}Z {rest}" for second in range(10, 20)]
    assert proposed(tmp_path, "app.log", lines)["parse"] == parse


def test_the_delimiter_is_that_of_the_header(tmp_path: Path) -> None:
    lines = ["Time;Price;Tax", *(f"2015-05-17T10:05:{second}Z;1,5;0,2" for second in range(10, 22))]
    proposal = proposed(tmp_path, "prices.csv", lines)
    assert proposal["settings"] == {"fields": ["time", "price", "tax"], "delimiter": ";"}


CSV_HEADER = "time,user,amount,comment"


def test_delimiters_in_quoted_fields_are_no_delimiters(tmp_path: Path) -> None:
    rows = [f'2015-05-17T10:05:0{number}Z,u{number},1.5,"say ""hi"", {number}"' for number in range(3)]
    proposal = proposed(tmp_path, "sales.csv", [CSV_HEADER, *rows])
    assert (proposal["parse"], proposal["settings"]) == ("csv", {"fields": ["time", "user", "amount", "comment"]})
    assert (proposal["samples"][0]["comment"], proposal["errors"]) == ('say "hi", 0', {})


@pytest.mark.parametrize("more", [["second line, of it"], ["second line", "third", "fourth"]], ids=["a few", "most lines"])
def test_quoted_fields_that_go_on_in_the_next_line_are_joined(more: list[str], tmp_path: Path) -> None:
    rows = [[f'2015-05-17T10:05:0{number}Z,u{number},1.5,"first line', *more[:-1], f'{more[-1]}"'] for number in range(9)]
    lines = [CSV_HEADER, *(line for row in rows for line in row)]
    proposal = proposed(tmp_path, "sales.csv", lines)
    assert (proposal["trouble"], proposal["parse"], proposal["join_lines"], proposal["errors"]) == (None, "csv", True, {})
    assert proposal["samples"][0]["comment"] == "\n".join(["first line", *more])
    assert "--join-lines" in proposal["commands"][0]


def test_joining_is_proposed_where_it_would_leave_no_line_without_a_time(tmp_path: Path) -> None:
    lines = ["2015-05-17 10:05:03 INFO x", "a second line", "a third line"] * 3
    refused = tried(tmp_path, "app.log", lines)
    assert (refused.exit_code, "--join-lines makes them one record" in refused.stderr) == (1, True)
    joined = tried(tmp_path, "app.log", lines, "--join-lines")
    assert (joined.exit_code, "time      ISO 8601: 3 of 3 records" in joined.stdout) == (0, True)
