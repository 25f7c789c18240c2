"""The broker runs no code of kafka-python and no `__init__` of crc32c and caio; all of them can still be imported later."""

from __future__ import annotations

import subprocess
import sys

import pytest
from logbus_broker.compiled_module import load_compiled


def output_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_broker_starts_without_packages_of_which_it_needs_a_part() -> None:
    program = """
import sys, logbus_broker.node
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.log.thread_pool import KernelSync
request_class(3), response_class(3), KernelSync.open()
print(sorted({"kafka", "crc32c", "caio", "asyncio", "email"} & set(sys.modules)))
"""
    assert output_of(program) == "[]"


@pytest.mark.parametrize("first", ["import logbus_broker.node", "import crc32c, caio.linux_aio"])
def test_the_whole_packages_can_be_imported_before_the_broker_and_after_it(first: str) -> None:
    program = f"""
{first}
from logbus_broker.protocol.batch import crc32c as ours
from logbus_broker.log.thread_pool import KernelSync
kernel = KernelSync.open()
import crc32c, caio.linux_aio, kafka
from kafka.admin import KafkaAdminClient
print(ours(b"abc") == crc32c.crc32c(b"abc"), kernel is None or isinstance(kernel._context, caio.linux_aio.Context), kafka.KafkaProducer)
"""
    assert output_of(program) == "True True <class 'kafka.producer.kafka.KafkaProducer'>"


@pytest.mark.parametrize(("package", "name"), [("no_such_package", "part"), ("crc32c", "no_such_part")])
def test_what_is_not_installed_is_named(package: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"{package}\.{name}"):
        load_compiled(package, name)
