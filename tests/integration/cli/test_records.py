"""`logbus produce` and `logbus consume` against a real broker, compared with kcat."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.commands import Run, Shown
from tests.support.programs import program_or_skip
from tests.support.topics import delete_topic, read_partition


@pytest.fixture
def made(run: Run, topic: str) -> str:
    """A topic with one partition and ten records, `line 0` to `line 9`."""
    run("topic", "create", topic)
    run("produce", topic, stdin="".join(f"line {number}\n" for number in range(10)))
    return topic


def lines(*numbers: int) -> str:
    return "".join(f"line {number}\n" for number in numbers)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), range(10)),
        (("-e",), range(10)),
        (("-o", "7"), (7, 8, 9)),
        (("-o", "-2"), (8, 9)),
        (("-o", "end"), ()),
        (("-o", "4", "-c", "3"), (4, 5, 6)),
        (("-p", "0", "-c", "1"), (0,)),
        (("-o", "s@0"), range(10)),
        (("-o", "e@2015-05-17T10:00:00Z"), ()),
        (("-f", "-c", "10"), range(10)),
        (("--text", "line 7"), (7,)),
        (("-o", "3", "--text", "line", "-c", "2"), (3, 4)),
        (("--key", "none"), ()),
    ],
)
def test_a_stretch_of_a_topic_is_printed(run: Run, made: str, words: tuple[str, ...], numbers: Any) -> None:
    result = run("consume", made, *words)
    assert result.stdout == lines(*numbers)
    assert f"of topic {made}" in result.stderr


def test_records_come_back_whole_in_every_form(run: Run, new_topic: str) -> None:
    run("produce", new_topic, "-K", ":", "-H", "server=web1", "-z", "zstd", stdin="host:text\nno key\n")
    run("produce", new_topic, "-Z", "-k", "gone", "-D", "--", stdin=b"\xff\x00----")
    found = [json.loads(line) for line in run("consume", new_topic, "-J").stdout.splitlines()]
    assert [(one["key"], one["payload"]) for one in found] == [("host", "text"), (None, "no key"), ("gone", None), ("gone", None)]
    assert (found[0]["headers"], found[2]["payload_base64"]) == (["server", "web1"], "/wA=")
    assert run("consume", new_topic, "-o", "json", "-q").stdout == run("consume", new_topic, "-J", "-q").stdout
    assert run("consume", new_topic, "--format", "%o %k %S,", "-q").stdout == "0 host 4,1  6,2 gone 2,3 gone -1,"
    table = run("consume", new_topic, "-o", "table", "-o", "1", "-c", "1").stdout.splitlines()
    assert (table[0].split()[0], table[1].split()[1], table[1][-6:]) == ("PARTITION", "1", "no key")


def test_kcat_reads_what_we_send_and_says_what_we_say(run: Run, broker: AnyBroker, made: str) -> None:
    kcat = [program_or_skip("kcat"), "-b", broker.bootstrap, "-C", "-t", made, "-p", "0", "-e", "-q"]

    def theirs(*words: str) -> str:
        return subprocess.run([*kcat, *words], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stdout

    for words in (("-o", "beginning"), ("-o", "-3"), ("-o", "5", "-c", "2")):
        assert run("consume", made, *words).stdout == theirs(*words)
    template = "%t %p %o %S %K %s %T %h %%\\n"
    assert run("consume", made, "--format", template).stdout == theirs("-o", "beginning", "-f", template)
    names = json.loads(theirs("-o", "0", "-c", "1", "-J")).keys()
    ours = json.loads(run("consume", made, "-c", "1", "-J").stdout).keys()
    assert ours == names - {"broker"}


def test_a_group_goes_on_where_it_was_and_commits_what_was_printed(run: Run, shown: Shown, made: str) -> None:
    group = f"group-of-{made}"
    assert run("consume", made, "-G", group, "-c", "4").stdout == lines(0, 1, 2, 3)
    assert run("consume", made, "-G", group, "-p", "0", "-o", "stored").stdout == lines(*range(4, 10))  # does not join
    assert run("consume", made, "-G", group).stdout == lines(*range(4, 10))
    assert [one["lag"] for one in shown("group", "offsets", group)] == [0]
    assert "a group continues where it is" in run("consume", made, "-G", group, "-o", "3", status=2).stderr


def test_files_are_sent_one_after_another(run: Run, shown: Shown, broker: AnyBroker, new_topic: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name} 1\n{name} 2")
    stored = run("produce", new_topic, str(tmp_path / "a"), "-", str(tmp_path / "b"), stdin="typed\n")
    assert stored.stderr == f"{new_topic}: 5 records stored\n"
    values = [message.value() for message in read_partition(broker.bootstrap, new_topic)]
    assert values == [b"a 1", b"a 2", b"typed", b"b 1", b"b 2"]
    found = json.loads(run("produce", new_topic, "-o", "json", stdin="x\n").stdout)
    assert found == {"topic": new_topic, "records": 1, "partitions": {"0": {"records": 1, "first_offset": 5, "last_offset": 5}}}
    assert "cannot read" in run("produce", new_topic, str(tmp_path / "c"), status=1).stderr


def test_nothing_is_sent_to_what_is_not_there(run: Run, broker: AnyBroker, made: str) -> None:
    assert "has no topic 'nowhere'" in run("produce", "nowhere", stdin="x\n", status=3).stderr
    assert "has no topic 'nowhere'" in run("consume", "nowhere", status=3).stderr
    assert "no partition 3: it has 0 to 0" in run("produce", made, "-p", "3", stdin="x\n", status=1).stderr
    assert len(read_partition(broker.bootstrap, made)) == 10
    delete_topic(broker.bootstrap, made)
    assert run("produce", made, stdin="x\n", status=3).stdout == ""


def test_a_record_that_is_too_large_fails_the_command_and_is_named(run: Run, made: str) -> None:
    result = run("produce", made, "-X", "message.max.bytes=2000", stdin="small\n" + "x" * 3000 + "\n", status=1)
    assert f"record 1 was not stored in topic {made}" in result.stderr
    assert "1 records were stored" in result.stderr
