"""`ship` and the `logbus ship` command against a running broker."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Message
from logbus.cli import main
from logbus.errors import TopicMissing, UndatedLog, UnreadableLog
from logbus.shipper.sample import write_sample
from logbus.shipper.ship import ShipReport, ship
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.recognising import recognise
from tests.support.topics import admin, delete_topic, partitions_of, read_topic

_numbers = itertools.count(1)
Ship = Callable[..., ShipReport]


@pytest.fixture
def topic() -> str:
    return f"shipped-{next(_numbers)}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def run(broker: AnyBroker, topic: str, tmp_path: Path) -> Iterator[Ship]:
    def run(*files: Path, **options: object) -> ShipReport:
        given = {"accept_times": True, **options}  # the lines are of 2015, the files of today
        config = {"bootstrap.servers": broker.bootstrap}
        return ship(files, topic=topic, client_config=config, state_path=tmp_path / "state.json", **given)  # type: ignore[arg-type]

    return run


def values(broker: AnyBroker, topic: str) -> list[bytes]:
    """All record values, sorted."""
    return sorted(message.value() or b"" for message in records(broker, topic))


def records(broker: AnyBroker, topic: str) -> list[Message]:
    return [message for messages in read_topic(broker.bootstrap, topic).values() for message in messages]


def line(second: int, text: str = "x") -> str:
    return f"2015-05-17T10:{second // 60:02d}:{second % 60:02d}Z {text}\n"


def test_every_line_is_a_record_with_its_key_time_server_and_place(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    text = '83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "agent"'
    log.write_text(f"{text}\n{text}\n")
    report = run(log, server_name="web1")
    assert (report.files, report.lines, report.bytes, report.skipped) == (1, 2, 2 * len(text), 0)
    first, second = records(broker, topic)
    assert (first.key(), first.value(), first.timestamp()) == (b"83.149.9.216", text.encode(), (1, 1431857103000))
    headers, later = dict(first.headers() or []), dict(second.headers() or [])
    assert (headers["server"], headers["file"]) == (b"web1", str(log).encode())
    assert [values["position"].partition(b":")[2] for values in (headers, later)] == [b"0", str(len(text) + 1).encode()]


def test_a_real_log_arrives_whole_and_in_the_order_of_each_host(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    write_sample(log, lines=5_000, hours=30, end=datetime(2015, 5, 21, tzinfo=UTC))
    run(log, server_name="web1")
    lines = log.read_bytes().splitlines()
    assert values(broker, topic) == sorted(lines)
    by_host: dict[bytes, list[bytes]] = defaultdict(list)
    for sent in lines:
        by_host[recognise(sent).host or b"web1"].append(sent)
    by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for message in records(broker, topic):
        by_key[message.key() or b""].append(message.value() or b"")
    assert by_key == by_host


def test_a_second_run_sends_only_what_is_new(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    log.write_text(line(1) + line(2))
    assert [run(log).lines, run(log).lines] == [2, 0]
    with log.open("a") as file:
        file.write(line(3) + "2015-05-17T10:00:04Z unfinished")
    assert [run(log).lines, run(log).lines] == [1, 0]
    with log.open("a") as file:
        file.write(" no more\n")
    assert run(log).lines == 1
    assert values(broker, topic) == sorted(log.read_bytes().splitlines())


def test_files_of_several_hosts_lie_in_the_topic_as_they_happened(
    broker: AnyBroker, topic: str, run: Ship, tmp_path: Path
) -> None:
    even, odd = tmp_path / "even.log", tmp_path / "odd.log"
    even.write_text("".join(line(second) for second in range(0, 200, 2)))
    odd.write_text("".join(line(second) for second in range(1, 200, 2)))
    run(odd, even, partitions=1)
    times = [message.timestamp()[1] for message in records(broker, topic)]
    assert times == sorted(times)
    assert len(times) == 200


def test_lines_that_are_too_long_are_counted_and_the_others_sent(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    log.write_text(line(1) + line(2, "y" * 2_000_000) + line(3))
    report = run(log)
    assert (report.lines, report.skipped) == (2, 1)
    assert values(broker, topic) == [line(1).rstrip().encode(), line(3).rstrip().encode()]
    assert run(log).skipped == 0


def test_a_longer_line_is_sent_where_that_is_asked_for(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    log.write_text(line(1) + line(2, "y" * 5_000_000))
    report = run(log, line_bytes_max=6_000_000)
    assert (report.lines, report.skipped) == (2, 0)
    assert sorted(map(len, values(broker, topic))) == [22, 5_000_021]


def test_the_topic_is_made_with_the_partitions_asked_for_and_kept_as_it_is(
    broker: AnyBroker, topic: str, run: Ship, log: Path
) -> None:
    log.write_text(line(1))
    run(log, partitions=5)
    run(log, partitions=2)
    assert partitions_of(broker.bootstrap, topic) == [0, 1, 2, 3, 4]


def test_a_topic_made_again_gets_everything_again(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    log.write_text(line(1))
    run(log)
    delete_topic(broker.bootstrap, topic)
    assert run(log).lines == 1
    assert len(values(broker, topic)) == 1


def test_what_an_interrupted_run_had_sent_is_found_in_the_topic(broker: AnyBroker, topic: str, run: Ship, tmp_path: Path) -> None:
    """The state file as a kill leaves it: out of date, and not marked clean."""
    log, state = tmp_path / "app.log", tmp_path / "state.json"
    log.write_text("".join(line(second) for second in range(100)))
    run(log)
    with log.open("a") as file:
        file.write("".join(line(second) for second in range(100, 150)))
    left_behind = json.loads(state.read_text())
    run(log)
    for topic_state in left_behind["topics"].values():
        topic_state["clean"] = False
    state.write_text(json.dumps(left_behind))
    with log.open("a") as file:
        file.write(line(150))
    report = run(log)
    assert (report.lines, report.recovered) == (1, 50)
    assert values(broker, topic) == sorted(log.read_bytes().splitlines())


def test_a_run_that_stops_between_the_pieces_of_a_line_costs_nothing(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    pieces = ("stdout P one ", "stderr F x", "stderr P a", "stdout F two", "stderr F b", "stdout F y")
    log.write_text("".join(line(second, text) for second, text in enumerate(pieces)))
    for count in range(4):
        run(log, stop=iter([False] * count + [True]).__next__)
    whole = ((0, "stdout F one two"), (1, "stderr F x"), (2, "stderr F ab"), (5, "stdout F y"))
    assert values(broker, topic) == [line(second, text).rstrip().encode() for second, text in whole]


def test_progress_reaches_the_end(run: Ship, log: Path) -> None:
    log.write_text(line(1) * 25_000)
    steps: list[tuple[int, ...]] = []
    run(log, progress=lambda *step: steps.append(step))
    size = log.stat().st_size
    assert steps[-1] == (size, size, 25_000)
    assert steps == sorted(steps)


def test_what_cannot_be_done_is_refused_before_anything_is_sent(broker: AnyBroker, topic: str, run: Ship, log: Path) -> None:
    log.write_text(line(1))
    with pytest.raises(TopicMissing):
        run(log, create_topic=False)
    with pytest.raises(UnreadableLog):
        run(log, log.with_name("missing.log"))
    assert topic not in admin(broker.bootstrap).list_topics(timeout=PATIENCE_SECONDS).topics


@pytest.mark.parametrize(("kept", "readable"), [(600, 100), (8, 0)], ids=["within the first bytes", "within its header"])
def test_a_file_that_ends_early_in_its_compression_keeps_no_other_from_being_sent(
    kept: int, readable: int, broker: AnyBroker, topic: str, run: Ship, tmp_path: Path
) -> None:
    good, broken = tmp_path / "good.log", tmp_path / "broken.log.gz"
    good.write_text(line(1) + line(2))
    whole = "".join(line(second) for second in range(360))
    broken.write_bytes(gzip.compress(whole.encode())[:kept])
    for _ in range(2):  # the second run finds nothing more to send, and reports the damage again
        with pytest.raises(UnreadableLog, match=r"broken\.log\.gz to its end: .*What was read before is sent; restore the file"):
            run(good, broken)
    rest = [message for message in records(broker, topic) if dict(message.headers() or [])["file"] == str(broken).encode()]
    assert readable <= len(rest) < 360
    assert sorted(message.value() or b"" for message in rest) == whole.encode().splitlines()[: len(rest)]
    assert len(values(broker, topic)) == len(rest) + 2


def test_of_a_file_restored_after_its_damage_only_the_rest_is_sent(
    broker: AnyBroker, topic: str, run: Ship, tmp_path: Path
) -> None:
    log = tmp_path / "app.log.gz"
    whole = "".join(line(second) for second in range(360)).encode()
    log.write_bytes(gzip.compress(whole)[:600])
    with pytest.raises(UnreadableLog):
        run(log)
    log.write_bytes(gzip.compress(whole))
    run(log)
    assert values(broker, topic) == whole.splitlines()


def test_the_command_ships_and_says_what_it_did(broker: AnyBroker, topic: str, log: Path, tmp_path: Path) -> None:
    sample = f"sample {log} --lines 300 --hours 3"
    assert CliRunner().invoke(main, sample).exit_code == 0
    again = CliRunner().invoke(main, sample)
    assert (again.exit_code, "already exists" in again.stderr) == (1, True), again.output
    state = tmp_path / "state.json"
    first, second = (shipped(broker, topic, log, state=state) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert f"{topic} at {broker.bootstrap}: 300 lines" in first.output
    assert f"{topic} at {broker.bootstrap}: 0 lines" in second.output
    assert ("nothing to send" in first.output, "nothing to send" in second.output) == (False, True)
    report = json.loads(shipped(broker, topic, log, "-o json", state=state).stdout)
    assert (report["topic"], report["files"], report["lines"], report["skipped"]) == (topic, 1, 0, 0)
    assert len(values(broker, topic)) == 300


LOCAL = "".join(f"2015-05-17 10:00:0{second} no zone\n" for second in range(3))


def shipped(broker: AnyBroker, topic: str, log: Path, options: str = "", state: Path | None = None) -> Result:
    """`logbus ship` of one file, with a state file of its own unless one is given."""
    state = state or log.with_name(f"state-{next(_numbers)}")
    settings = f"--topic {topic} --bootstrap-server {broker.bootstrap} --state {state} --accept-times"
    return CliRunner().invoke(main, f"ship {log} {settings} {options}")


def test_lines_without_a_zone_are_counted_and_said_to_be_assumed(broker: AnyBroker, topic: str, log: Path) -> None:
    log.write_text(LOCAL + line(4))
    done = shipped(broker, topic, log, "--json")
    assert "warning: 3 lines carry a time without a zone and were assumed to be UTC" in done.stderr
    report = json.loads(done.stdout)
    assert (report["zoneless"], report["timezone"], report["timezone_assumed"]) == (3, "UTC", True)


def test_a_zone_that_is_named_is_that_of_lines_without_one(broker: AnyBroker, topic: str, log: Path) -> None:
    log.write_text(LOCAL)
    done = shipped(broker, topic, log, "--timezone Europe/Berlin")
    assert (done.stderr, done.exit_code) == ("", 0)
    assert "3 lines whose time has no zone were taken in Europe/Berlin" in done.stdout
    eight_ms = int(datetime(2015, 5, 17, 8, tzinfo=UTC).timestamp() * 1000)
    assert [message.timestamp()[1] for message in records(broker, topic)] == [eight_ms + 1000 * second for second in range(3)]


def test_a_file_of_which_no_time_is_understood_is_refused_and_nothing_of_any_file_is_sent(
    broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    log, fine = tmp_path / "auth.log", tmp_path / "fine.log"
    log.write_text("on the 22nd at ten: Accepted publickey\n" * 3)
    fine.write_text(line(1))
    done = shipped(broker, topic, fine, str(log))
    assert done.exit_code == 1
    assert f"error: {log}: 3 of the first 3 lines have no time that is understood, such as line 1: 'on the 22nd" in done.stderr
    assert "--time-format" in done.stderr
    assert topic not in admin(broker.bootstrap).list_topics(timeout=PATIENCE_SECONDS).topics, "nor is an empty topic left behind"


def test_a_file_without_times_is_sent_where_that_is_allowed_and_nothing_untrue_is_said(
    broker: AnyBroker, topic: str, log: Path
) -> None:
    log.write_text("on the 22nd at ten: Accepted publickey\n" * 3)
    done = shipped(broker, topic, log, "--allow-undated")
    assert "3 lines without a believable time took the time at which their file was last written" in done.stdout
    assert "of the line before" not in done.stdout
    assert "warning: 3 of 3 lines have no time that is understood" in done.stderr


def test_whose_time_the_lines_without_one_took_is_said_of_each_kind(broker: AnyBroker, topic: str, log: Path) -> None:
    log.write_text("# banner\n" + line(1) + "  at Main.java\n" + line(2) + line(3))
    done = shipped(broker, topic, log)
    assert "1 line without a believable time took that of the line before\n" in done.stdout
    assert "1 line without a believable time took that of the first line after them that has one" in done.stdout
    assert done.stderr == ""


def test_what_waits_at_the_end_of_a_file_is_mentioned(broker: AnyBroker, topic: str, log: Path) -> None:
    log.write_text(line(1) + line(2).rstrip())
    done = shipped(broker, topic, log)
    assert ": 1 line (" in done.stdout
    assert "1 unfinished last line not sent yet: no newline ends it (--include-partial-line sends it)" in done.stdout
    assert "carriage returns" not in done.stdout
    log.write_text((line(1) + line(2)).replace("\n", "\r"))
    done = shipped(broker, topic, log)
    assert f"warning: what waits in {log} has carriage returns in it: if these end its lines" in done.stdout
    log.write_text(line(1) + line(2))
    done = shipped(broker, f"{topic}-joined", log, "--join-lines")
    assert "1 last record not sent yet: the file was just written" in done.stdout
    os.utime(log, (1, 1))
    done = shipped(broker, f"{topic}-quiet", log, "--join-lines")
    assert "not sent yet" not in done.stdout


def test_times_far_from_the_files_own_are_accepted_once(run: Ship, log: Path) -> None:
    log.write_text(line(1))
    with pytest.raises(UndatedLog, match="--accept-times sends them as they are"):
        run(log, accept_times=False)
    assert run(log).lines == 1
    with log.open("a") as file:
        file.write(line(2))
    assert run(log, accept_times=False).lines == 1


def test_lines_that_name_no_host_lie_in_one_partition_unless_they_are_to_be_spread(
    broker: AnyBroker, topic: str, log: Path
) -> None:
    log.write_text("".join(line(second) for second in range(600)))
    assert shipped(broker, topic, log).exit_code == 0
    assert sorted(len(records) for records in read_topic(broker.bootstrap, topic).values()) == [0, 0, 600]
    assert shipped(broker, f"{topic}-spread", log, "--producer-option partitioner=random").exit_code == 0
    spread = read_topic(broker.bootstrap, f"{topic}-spread").values()
    assert sum(map(len, spread)) == 600
    assert all(len(messages) > 100 for messages in spread)
    for messages in spread:
        times = [message.timestamp()[1] for message in messages]
        assert times == sorted(times)
