"""A schema registry that is killed again and again while four clients register: no id twice, no answered schema lost."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import urllib.request
from http.client import HTTPException
from itertools import count
from pathlib import Path

import pytest
from logbus.waiting import wait_until
from logbus.web.registry_state import KeyType, decoded_key, decoded_version

from benchmarks import processes
from tests.support.broker import LogbusBroker
from tests.support.topics import read_partition

KILLS = int(os.environ.get("LOGBUS_SOAK_KILLS", "200"))
CLIENTS = 4
ANSWERS_MAX = 50  # between two kills


@pytest.mark.timeout(3600)
def test_no_id_twice_and_none_lost_whenever_it_is_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    answered: dict[str, tuple[str, int]] = {}  # text and id by subject
    ending = threading.Event()
    with LogbusBroker(tmp_path / "broker") as broker:
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        threads = [
            threading.Thread(target=register_all, args=(url, client, answered, ending), daemon=True) for client in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        command = [sys.executable, "-m", "logbus", "registry", "serve", "--port", str(port), "-b", broker.bootstrap]
        for kill in range(KILLS + 1):
            process = processes.start(command, log_path=tmp_path / "registry.log", cwd=tmp_path)
            processes.wait_until_listening(port, process, log_path=tmp_path / "registry.log")
            if kill < KILLS:
                enough = len(answered) + chance.randrange(ANSWERS_MAX)  # 0: while it starts
                wait_until(lambda enough=enough: len(answered) >= enough, what="registrations", poll_seconds=0.001)  # type: ignore[misc]
                time.sleep(chance.uniform(0.0, 0.01))
                process.kill()
                process.wait()
        before = len(answered)
        wait_until(lambda: len(answered) >= before + 10 * CLIENTS, what="registrations after the last kill")
        ending.set()
        for thread in threads:
            thread.join()
        again = [(subject, ask(url, subject, text)) for subject, (text, _) in answered.items()]
        processes.stop(process)
        messages = read_partition(broker.bootstrap, "_schemas")
    assert {subject: schema_id for subject, (_, schema_id) in answered.items()} == dict(again)
    stored = [
        decoded_version(message.value() or b"") for message in messages if decoded_key(message.key()).kind is KeyType.SCHEMA
    ]
    ids = {(version.schema_id, version.schema.text) for version in stored}
    assert len(ids) == len({schema_id for schema_id, _ in ids}) == len({text for _, text in ids})
    assert {version.subject for version in stored} >= answered.keys()
    print(f"{KILLS} kills, {len(answered)} schemas answered, {len(ids)} ids")


def register_all(url: str, client: int, answered: dict[str, tuple[str, int]], ending: threading.Event) -> None:
    for number in count():
        if ending.is_set():
            return
        subject, text = f"{client}-{number}", json.dumps({"type": "fixed", "name": f"F{number}", "size": 1 + number})
        while not ending.is_set():
            try:
                answered[subject] = text, ask(url, subject, text)
                break
            except (OSError, HTTPException):  # refused, or cut off in the middle of an answer
                time.sleep(0.01)


def ask(url: str, subject: str, text: str) -> int:
    body, kind = json.dumps({"schema": text}).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/subjects/{subject}/versions", body, kind), timeout=60) as answer:
        return int(json.loads(answer.read())["id"])
