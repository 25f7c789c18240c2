from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from logbus.cli.secure_home import Authority
from logbus.errors import RegistryUnavailable
from logbus.kafka.client import Client
from logbus.parsing.decoders import reference_to_id
from logbus.parsing.registry_client import RegistryClient, tls_context

from tests.support.avro_values import record
from tests.support.schema_registry import Registry

ADDRESS, ORDER = record(("street", "string"), name="Address"), record(("to", "Address"))


def test_a_schema_comes_with_everything_it_imports_dependencies_first(registry: Registry) -> None:
    registry.register("address", ADDRESS)
    reference = {"name": "Address", "subject": "address", "version": 1}
    number = registry.register("order", ORDER, references=[reference])
    with RegistryClient(registry.url + "/", {}) as client:
        schema = client.fetch(reference_to_id(number))
        by_guid = client.fetch(b"\x01" + uuid.UUID(int=number).bytes)
    assert schema is not None
    assert by_guid is not None
    assert (schema.type, schema.text, schema.imports[0].name) == ("AVRO", by_guid.text, "Address")
    assert by_guid.imports == schema.imports


def test_a_schema_that_imports_itself_is_the_registrys_fault(registry: Registry) -> None:
    number = registry.register("order", ORDER, references=[{"name": "Address", "subject": "order", "version": 1}])
    with RegistryClient(registry.url, {}) as client, pytest.raises(RegistryUnavailable, match="imports more than 300 others"):
        client.fetch(reference_to_id(number))


def test_a_schema_is_text_that_the_ledger_can_hold(registry: Registry) -> None:
    number = registry.register("order", '{"type": "string", "doc": "a\ud800\0"}')
    with RegistryClient(registry.url, {}) as client:
        schema = client.fetch(reference_to_id(number))
    assert schema is not None
    assert json.loads(schema.text)["doc"] == "a\ud800\0"
    assert "\0" not in schema.text.encode().decode()


def test_only_what_the_registry_says_it_does_not_have_is_unknown(registry: Registry) -> None:
    with RegistryClient(registry.url, {}) as client:
        assert client.fetch(reference_to_id(7)) is None
    with RegistryClient(f"{registry.url}/wrong", {}) as client, pytest.raises(RegistryUnavailable, match="HTTP 404"):
        client.fetch(reference_to_id(7))


def test_a_registry_that_is_down_is_named_and_asked_once(registry: Registry) -> None:
    registry.stop()
    with RegistryClient(registry.url, {}) as client:
        for _ in range(2):
            with pytest.raises(RegistryUnavailable, match=f"the schema registry at {registry.url} does not answer"):
                client.fetch(reference_to_id(7))


@pytest.mark.parametrize(("settings", "is_known"), [({"basic.auth.user.info": "me:se:cret"}, True), ({}, False)])
def test_the_login_is_among_the_settings_of_the_client(registry: Registry, settings: dict[str, Any], is_known: bool) -> None:
    registry.login = "me:se:cret"
    number = registry.register("order", ADDRESS)
    with RegistryClient(registry.url, settings) as client:
        if is_known:
            assert client.fetch(reference_to_id(number)) is not None
        else:
            with pytest.raises(RegistryUnavailable, match=r"set basic\.auth\.user\.info=user:password"):
                client.fetch(reference_to_id(number))


def test_librdkafka_does_not_see_the_login() -> None:
    client = Client({"bootstrap.servers": "127.0.0.1:1", "basic.auth.user.info": "me:secret"})
    assert "basic.auth.user.info" not in client.settings(())


def test_protobufs_schemas_are_asked_for_as_descriptors(registry: Registry) -> None:
    number = registry.register("order", "CgA=", "PROTOBUF")
    with RegistryClient(registry.url, {}) as client:
        client.fetch(reference_to_id(number))
    assert registry.asked == [f"/schemas/ids/{number}", f"/schemas/ids/{number}?format=serialized"]


def test_the_brokers_authority_is_trusted_beside_the_systems_unless_there_is_one_for_registries(tmp_path: Path) -> None:
    path, other = (Authority(tmp_path / name).certificate_path for name in ("brokers", "registries"))
    systems = tls_context({}).cert_store_stats()["x509_ca"]
    for settings in ({"ssl.ca.location": str(path)}, {"ssl.ca.pem": path.read_text()}):
        assert tls_context(settings).cert_store_stats()["x509_ca"] == systems + 1
        assert tls_context({**settings, "schema.registry.ssl.ca.location": str(other)}).cert_store_stats()["x509_ca"] == 1
    assert tls_context({"ssl.ca.location": "probe"}).cert_store_stats()["x509_ca"] == systems
