from __future__ import annotations

import pytest
from logbus_broker.setting_parsers import Listener, parse_listener, parse_listeners, parse_metrics_listener


def test_a_listener_reads_as_it_is_written() -> None:
    for text in ("PLAINTEXT://127.0.0.1:9092", "INTERNAL://[::1]:0", "CLIENTS_2://:9094"):
        assert str(parse_listener(text)) == text


def test_names_are_upper_case_as_in_kafka() -> None:
    assert parse_listeners("internal://h:1,plaintext://h:2") == (
        Listener(name="INTERNAL", host="h", port=1),
        Listener(name="PLAINTEXT", host="h", port=2),
    )


def test_the_system_may_choose_the_ports_of_several() -> None:
    assert [listener.port for listener in parse_listeners("A://h:0,B://h:0")] == [0, 0]


def test_an_ipv4_and_an_ipv6_address_may_share_a_port_and_nothing_else_may() -> None:
    assert len(parse_listeners("A://127.0.0.1:1,B://[::1]:1,C://h:2")) == 3
    for text in (
        "A://127.0.0.1:1,B://h:1",
        "A://[::1]:1,B://[fd00::1]:1",
        "A://127.0.0.1:1,B://[::1]:1,C://127.0.0.2:1",
        "A://:1,B://[::1]:1",
    ):
        with pytest.raises(ValueError, match="only an IPv4 and an IPv6 address may share one"):
            parse_listeners(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:9092", "A://h", "A://h:99999", "A B://h:1", "://h:1", "", "A://h:\uff11", "A://h:\xb2", "A://h:1_0"]
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must look like PLAINTEXT://"):
        parse_listener(text)


def test_metrics_are_http_or_nowhere() -> None:
    assert parse_metrics_listener("") is None
    with pytest.raises(ValueError, match="only HTTP"):
        parse_metrics_listener("PLAINTEXT://127.0.0.1:1")
