"""What `make test` runs: in five minutes on two cores, whether all of it works. `make test-all` runs everything else.

Whole folders are of tests that start no process, or share one; properties and simulations run with few examples there
(tests/support/examples.py). Of the contracts it is the side that answers at once, and of the tests with real processes one pass
through everything. A new test of a real process belongs here only if it displaces one.
"""

from __future__ import annotations

from pathlib import Path

WHOLE = ("tests/unit/", "tests/property/", "tests/sim/", "tests/proof/")

# What runs with few examples there, and with all of them in the rest.
WITH_FEW_EXAMPLES = (
    "tests/property/",
    "tests/sim/test_cluster.py::test_what_a_cluster_has_promised",
    "tests/sim/test_single.py::test_clients_see_nothing_wrong",
    "tests/proof/test_proof.py::test_nothing_false_is_called_exact",
)

# The sides of a contract that a server has to be started for, or that another side stands for.
SLOW_SIDES = ("kafka", "apache_kafka", "real", "partitioned", "iceberg")

# Whether the simulations and the proof machine notice what is missing, each rule by its name.
OF_THE_REST = (
    "tests/sim/test_cluster.py::test_a_rule_of_replication_that_is_switched_off_is_noticed",
    "tests/sim/test_cluster.py::test_what_each_rule_is_for_does_no_harm",
    "tests/proof/test_proof.py::test_a_check_that_is_switched_off_is_noticed",
)

ONE_REAL_PASS = (
    "tests/contract/broker/test_acls.py",
    "tests/contract/broker/test_answers.py",
    "tests/contract/coordination/",
    "tests/contract/sinks/test_sinks.py",
    "tests/contract/test_group_offsets.py",
    "tests/contract/test_log_admin.py",
    "tests/contract/test_log_batches.py",
    "tests/contract/test_offset_log.py",
    "tests/contract/test_producing.py",
    "tests/contract/test_reassignments.py",
    "tests/integration/broker/test_confluent.py",  # real clients
    "tests/integration/broker/test_kafka_python.py",
    "tests/integration/broker/test_aiokafka.py",
    "tests/integration/broker/test_kcat.py",
    "tests/integration/broker/test_registry.py::test_every_method_of_confluents_client",
    "tests/integration/broker/test_registry.py::test_confluents_serializers_for_each_type",
    "tests/integration/broker/test_three_brokers.py",  # three brokers and their ZooKeeper: elections
    "tests/integration/cli/test_signals.py::test_a_shipment",  # commands as processes
    "tests/integration/cli/test_signals.py::test_a_producer",
    "tests/integration/shipper/test_ship.py",
    "tests/integration/ledger/test_freezing.py",  # PostgreSQL: which offsets are an hour, their load, its proof
    "tests/integration/ledger/test_commit.py",
    "tests/integration/ledger/test_audit.py",
    "tests/integration/ledger/test_streams.py::test_the_view_is_what_arrived",
    "tests/fault/broker/test_kill.py::test_what_was_acknowledged",
    "tests/e2e/test_demo.py",  # 24 hours through Airflow and Spark
    "tests/e2e/test_in_browser.py::test_an_hour_is_rerun_and_turns_green",  # and one more, from a page in Chromium
)
FIRST = (*WHOLE, *ONE_REAL_PASS)


def holds_first(path: Path, root: Path) -> bool:
    """Whether the file or folder may hold tests of `make test`: the others need not even be imported."""
    place = path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")
    return any(place.startswith(part) or part.startswith(place) for part in FIRST)


def is_first(node_id: str) -> bool:
    """Whether `make test` runs this test."""
    path, _, name = node_id.partition("::")
    sides = name.partition("[")[2].rstrip("]").split("-") if path.startswith("tests/contract/") else []
    return node_id.startswith(FIRST) and not node_id.startswith(OF_THE_REST) and not any(side in SLOW_SIDES for side in sides)


def is_rest(node_id: str) -> bool:
    """Whether it remains to be run after `make test`: what ran with few examples runs again, with all of them."""
    return not is_first(node_id) or node_id.startswith(WITH_FEW_EXAMPLES)
