"""Tests of the parallel run of checks: deadlines, errors as results, shared facts, output and exit codes."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from invoke import Context

from remote.hosts.host_protocol import LoginRefused
from remote.hosts.pods.kubectl import Unreachable
from tasks.doctor import doctor
from tasks.doctor.check import Check, CheckContext, SharedFact, run_check, run_checks
from tasks.doctor.doctor import all_checks
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.faults import CheckResult, CheckStatus, Skipped, from_error, passed
from tests.support.answers import print_answer
from tests.unit.tasks.doctor.conftest import MakeContext


def make_check(name: str, run: Any) -> Check:
    return Check(subject="test", name=name, question="?", run=run)


def failing_check(error: Exception) -> Check:
    def run(_: CheckContext) -> CheckResult:
        raise error

    return make_check("raises", run)


@pytest.mark.parametrize(
    ("error", "status", "remedy", "is_transient"),
    [
        (UsageError("x: wrong", remedy="type y"), CheckStatus.FAIL, "type y", False),
        (RetryableError("x: wrong", remedy="type y"), CheckStatus.FAIL, "type y", True),
        (LoginRefused("x: wrong", remedy="type y"), CheckStatus.FAIL, "type y", False),
        (OSError("x: wrong"), CheckStatus.FAIL, "", False),
        (Unreachable("x: wrong", remedy="see the VPN"), CheckStatus.FAIL, "see the VPN", True),
        (Skipped("x: wrong"), CheckStatus.SKIP, "", False),
    ],
)
def test_every_error_is_a_result_with_its_remedy(
    error: Exception, status: CheckStatus, remedy: str, is_transient: bool, make_context: MakeContext
) -> None:
    expected = CheckResult(status=status, message="x: wrong", remedy=remedy, is_transient=is_transient)
    assert run_check(failing_check(error), make_context()) == [expected]


def test_a_bug_in_a_check_does_not_hide_the_results_of_others(make_context: MakeContext) -> None:
    both = (failing_check(ZeroDivisionError("a bug")), make_check("other", lambda _: passed("good")))
    first, second = ([result.message for result in results] for _, results in run_checks(both, make_context()))
    assert len(first) == 1
    assert first[0].endswith("ZeroDivisionError: a bug")
    assert second == ["good"]


def test_a_check_that_hangs_does_not_delay_others(make_context: MakeContext) -> None:
    hangs = make_check("hangs", lambda _: threading.Event().wait())
    good = make_check("good", lambda _: passed("good"))
    first_results = {
        check.name: results[0] for check, results in run_checks((hangs, good), make_context(), timeout_sec=0.2)
    }
    assert "0.2 s" in first_results["hangs"].message
    assert first_results["hangs"].is_transient
    assert first_results["good"].status is CheckStatus.OK


def test_a_fact_is_computed_once_and_one_check_reports_its_error() -> None:
    calls = []

    def compute() -> int:
        calls.append(1)
        raise UsageError("no kubeconfig", remedy="make one")

    shared = SharedFact(compute, "cluster reachable")
    with pytest.raises(UsageError, match="no kubeconfig"):
        shared.get_or_raise()
    for _ in range(2):
        with pytest.raises(Skipped, match="see cluster reachable"):
            shared.get_or_skip()
    assert calls == [1]


def test_a_fact_has_the_title_of_an_existing_check(make_context: MakeContext) -> None:
    titles = {var._title for var in vars(make_context()).values() if isinstance(var, SharedFact)}
    assert titles <= {check.title for check in all_checks()}


WARNING = CheckResult(status=CheckStatus.WARN, message="hm")
SKIPPED = CheckResult(status=CheckStatus.SKIP, message="why")
FAILURE, TRANSIENT = from_error("x"), from_error("x", is_transient=True)
EXIT_CODES: dict[str, tuple[list[CheckResult], int]] = {
    "ok": ([passed("good")], 0),
    "warning": ([WARNING], 0),
    "skipped": ([SKIPPED], 0),
    "failure": ([passed("good"), FAILURE], 1),
    "transient failure": ([TRANSIENT], 3),
    "both": ([TRANSIENT, FAILURE], 1),
}


@pytest.mark.parametrize(("results", "code"), EXIT_CODES.values(), ids=EXIT_CODES)
def test_the_exit_code_follows_from_the_statuses(
    results: list[CheckResult], code: int, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "all_checks", lambda _=None: (make_check("one", lambda _: results),))
    if code == 0:
        assert doctor.run_doctor(context(), None).failure is None
        return
    with pytest.raises(TaskFailed, match="test one") as raised:
        print_answer(doctor.run_doctor(context(), None))
    assert raised.value.exit_code == code


def test_the_json_document_has_a_state_for_each_status() -> None:
    results = [passed("good"), WARNING, FAILURE, SKIPPED]
    document = doctor.to_document([(make_check("one", None), results)], 1.0)
    assert [answer["state"] for answer in document["answers"]] == ["fine", "careful", "wrong", "unasked"]


def test_consecutive_checks_skipped_for_the_same_reason_share_a_line(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_vm = failing_check(Skipped("no VM"))
    checks = (make_check("a", lambda _: passed("good")), no_vm, no_vm)
    monkeypatch.setattr(doctor, "all_checks", lambda _=None: checks)
    doctor.run_doctor(context(), None)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["✓ test a good", f"{CheckStatus.SKIP.mark} test, 2 checks no VM"]
    assert re.match(rf"1 .*✓, 2 .*{CheckStatus.SKIP.mark}; 3 checks in ", lines[2])


def test_an_unknown_subject_is_rejected_with_the_known_ones(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"--only: .*'clustr'; .*machine, settings"):
        doctor.run_doctor(context(), "machine,clustr")
