from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from logbus.errors import UserError
from logbus.status.checks import Finding, Machine, ProgramOutput, ProgramStillRunning, ok, run_checks, run_program
from logbus.status.installation_checks import check_java

AROUND = Machine(clock=lambda: datetime(2026, 11, 21, tzinfo=UTC))


def fine(around: Machine) -> Iterator[Finding]:
    yield ok("fine", "as it should be")


def test_findings_come_in_the_order_of_the_checks_whichever_ends_first() -> None:
    has_run = threading.Event()

    def slow(around: Machine) -> Iterator[Finding]:
        assert has_run.wait(30)
        yield ok("slow", "took its time")

    def quick(around: Machine) -> Iterator[Finding]:
        yield ok("quick", "at once")
        has_run.set()

    assert [found.subject for found in run_checks({"slow": slow, "quick": quick}, AROUND)] == ["slow", "quick"]


def test_a_check_that_does_not_end_is_no_error_and_the_others_are_told() -> None:
    forever = threading.Event()

    def stuck(around: Machine) -> Iterator[Finding]:
        forever.wait(30)
        yield ok("stuck", "never said in time")

    late, other = run_checks({"stuck": stuck, "fine": fine}, AROUND, seconds_max=0.05)
    forever.set()
    assert (str(late.severity), late.subject, late.message) == ("warning", "stuck", "not known yet: no answer within 0 s")
    assert other.subject == "fine"


def test_a_program_that_does_not_end_is_no_error_of_what_it_looks_at() -> None:
    def run(command: Sequence[str], more: Mapping[str, str] = {}) -> ProgramOutput:
        raise ProgramStillRunning(f"{command[0]} has not ended within 240 s")

    around = replace(AROUND, environment={"JAVA_HOME": "/j"}, run=run)
    (found,) = run_checks({"java": check_java}, around)
    assert (str(found.severity), found.message) == ("warning", "not known yet: /j/bin/java has not ended within 240 s")


def test_a_check_that_fails_is_a_finding_that_keeps_what_was_found_before() -> None:
    def fails(around: Machine) -> Iterator[Finding]:
        yield ok("first", "well")
        raise UserError("the settings are wrong")

    def breaks(around: Machine) -> Iterator[Finding]:
        raise ZeroDivisionError("ours")
        yield

    found = run_checks({"fails": fails, "breaks": breaks, "fine": fine}, AROUND)
    assert [(str(one.severity), one.message[:40]) for one in found] == [
        ("ok", "well"),
        ("error", "the settings are wrong"),
        ("error", "the check itself crashed: ZeroDivisionEr"),
        ("ok", "as it should be"),
    ]


def test_a_program_is_run_without_input_and_one_that_is_not_there_is_said() -> None:
    assert (run_program(["cat"]).text, run_program(["cat"]).status) == ("", 0)
    assert run_program(["sh", "-c", "echo out; echo err >&2; exit 3"]).status == 3
    assert run_program(["/nowhere/java"]) == run_program(["/nowhere/python"])
    assert run_program(["/nowhere/java"]).text == "No such file or directory"
