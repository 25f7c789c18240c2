"""Kafka clients in other languages: compiled on first use, started with settings in librdkafka's names, given lines to send."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from logbus.waiting import PATIENCE_SECONDS

from tests.support.programs import built, program_or_skip

Command = Callable[[], Sequence[str]]


def sarama() -> Sequence[str]:
    return [f"{built('go_clients').name}/go_clients", "sarama"]


def franz_go() -> Sequence[str]:
    return [f"{built('go_clients').name}/go_clients", "franz"]


def kafkajs() -> Sequence[str]:
    return [program_or_skip("node"), f"{built('kafkajs_client').name}/client.js"]


def roundtrip(
    command: Command, values: Sequence[bytes], topic: str, settings: Mapping[str, str], **environment: str
) -> list[bytes]:
    """What the client has read of the values that it was given to send; RuntimeError with what it says if it fails."""
    done = subprocess.run(
        command(),
        input=b"\n".join(values),
        env={**os.environ, "SETTINGS": json.dumps(settings), "TOPIC": topic, **environment},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return done.stdout.splitlines()
