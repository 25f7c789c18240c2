"""Any well-formed request of any API and version gets an answer that another implementation (kio) reads, or a closed connection;
never an exception, and never an answer in a version that was not requested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from broker.errors import ProtocolError
from broker.handlers.reply import Pending
from broker.protocol.api import APIS, ApiKey
from tests.support.engine import Harness, batch
from tests.support.examples import examples
from tests.support.kio_messages import read_response, requests, written
from tests.support.wire import produce_body

EXAMPLES = 6
OFFERED = [
    pytest.param(int(key), version, id=f"{ApiKey(key).name}-v{version}")
    for key, api in APIS.items()
    for version in range(api.first, api.last + 1)
]


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_any_request_is_answered_in_its_own_version(tmp_path: Path, api_key: int, version: int) -> None:
    broker = Harness(tmp_path, partitions_max=100)
    broker.create("clicks")
    broker.dispatch(ApiKey.PRODUCE, 12, produce_body({("clicks", 0): batch(b"a", b"b")}))
    broker.flush()

    @settings(max_examples=examples(EXAMPLES), suppress_health_check=[HealthCheck.too_slow])
    @given(requests(api_key, version))
    def check(message: Any) -> None:
        try:
            answer = broker.dispatch(ApiKey(api_key), version, bytearray(written(message)))
        except ProtocolError:
            return
        broker.settle()
        if isinstance(answer, Pending) and (answer.parts is None or answer.silent):
            return
        read_response(api_key, version, broker.bytes_of(answer))

    check()
    broker.close()
