"""Closed by default: a listener that others can reach, and that asks nobody who they are, does not start without the words.

Judged by the address that a socket is bound to, not by the text of the setting: a host name may lead anywhere.
"""

from __future__ import annotations

from ipaddress import ip_address

from logbus_broker.config.parsers import Listener, SecurityProtocol
from logbus_broker.config.settings import BrokerConfig

WORDS = "logbus.allow.unauthenticated"
METRICS_WORDS = "logbus.metrics.allow.unauthenticated"


def reach_of(address: str) -> str:
    """From where a listener that is bound to this address can be reached; empty if only from this machine."""
    parsed = ip_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_unspecified:
        return "every interface"
    return "" if parsed.is_loopback else "an address of the network"


def knows_its_clients(listener: Listener, config: BrokerConfig) -> bool:
    """Whether the clients of one of the listeners log in, or show a certificate."""
    protocol = config.protocol_of(listener.name)
    asks_for_certificates = config.at_listener(listener.name).ssl_client_auth == "required"
    return protocol.has_login or (protocol is SecurityProtocol.SSL and asks_for_certificates)


def why_closed(listener: Listener, address: str, config: BrokerConfig) -> str | None:
    """Why a listener bound to `address` may not be opened, and what to do; None if it may. That for metrics has no login."""
    reach, is_metrics = reach_of(address), listener == config.metrics_listener
    if not reach or (not is_metrics and knows_its_clients(listener, config)):
        return None
    words = METRICS_WORDS if is_metrics else WORDS
    if is_metrics:
        setting, scheme, may, others = "logbus.metrics.listener", "http", "see the names and sizes of topics and groups", ""
    else:
        setting, scheme, may = "listeners", listener.name, "read, write and delete everything"
        others = "to let in clients with a certificate, use SSL and ssl.client.auth=required (docs/security.md); "
    written = f"{scheme}://{str(listener).partition('://')[2]}"
    return (
        f"{setting}={written} is {reach} and asks nobody for a login: anyone who can connect could {may}. For this machine only, "
        f"set {setting}={scheme}://127.0.0.1:{listener.port}; {others}if all who can connect may do that, add --override "
        f"{words}=true"
    )


def allowed_by(listener: Listener, config: BrokerConfig) -> str:
    """The setting by which it is opened nevertheless; empty if none does."""
    if config.allow_unauthenticated:
        return WORDS
    return METRICS_WORDS if listener == config.metrics_listener and config.metrics_allow_unauthenticated else ""
