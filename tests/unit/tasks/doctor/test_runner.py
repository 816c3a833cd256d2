"""The checks side by side: deadlines, errors as answers, a fact that several ask for."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from invoke import Context

from remote.cluster.errors import Unreachable
from remote.hosts.host import LoginRefused
from tasks.doctor import doctor
from tasks.doctor.check import Check
from tasks.doctor.context import CheckContext, SharedFact
from tasks.doctor.registry import CHECKS
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine, from_error
from tasks.doctor.runner import answers, examine
from tasks.errors import RetryableError, TaskFailed, UsageError
from tests.unit.tasks.doctor.conftest import MakeFacts


def check(name: str, look: Any) -> Check:
    return Check(subject="test", name=name, asks="?", look=look)


def raises(error: Exception) -> Check:
    def look(_: CheckContext) -> CheckResult:
        raise error

    return check("raises", look)


def test_a_fault_is_said_and_shown_from_the_same_words() -> None:
    fault = Fault(what="{folder}: {free_bytes} free", remedy="free space in {folder}")
    said = fault.seen(folder="/a", free_bytes=3)
    assert (said.mark, said.found, said.remedy) == (CheckStatus.WRONG, "/a: 3 free", "free space in /a")
    assert fault.shown() == ("FOLDER: FREE-BYTES free", "free space in FOLDER")


@pytest.mark.parametrize(
    ("error", "mark", "remedy", "passes"),
    [
        (UsageError("x: wrong; type y"), CheckStatus.WRONG, "type y", False),
        (RetryableError("x: wrong; type y"), CheckStatus.WRONG, "type y", True),
        (LoginRefused("x: wrong; type y"), CheckStatus.WRONG, "type y", False),
        (OSError("x: wrong; type y"), CheckStatus.WRONG, "type y", False),
        (Unreachable("x: wrong; see the VPN"), CheckStatus.WRONG, "see the VPN; `inv doctor` tries again", True),
        (Skipped("x: wrong"), CheckStatus.UNASKED, "", False),
    ],
)
def test_every_error_is_an_answer_with_its_remedy(
    error: Exception, mark: CheckStatus, remedy: str, passes: bool, facts: MakeFacts
) -> None:
    assert answers(raises(error), facts()) == [CheckResult(mark=mark, found="x: wrong", remedy=remedy, passes=passes)]


def test_a_fault_of_ours_hides_nothing_of_what_the_others_found(facts: MakeFacts) -> None:
    both = (raises(ZeroDivisionError("a bug")), check("other", lambda _: fine("good")))
    first, second = ([one.found for one in said] for _, said in examine(both, facts()))
    assert first == ["the check itself failed: ZeroDivisionError: a bug"]
    assert second == ["good"]


def test_a_check_that_hangs_costs_its_own_line_alone(facts: MakeFacts) -> None:
    hangs, good = check("hangs", lambda _: threading.Event().wait()), check("good", lambda _: fine("good"))
    found = {one.name: said[0] for one, said in examine((hangs, good), facts(), within_sec=0.2)}
    assert found["hangs"].found == "no answer within 0.2 s"
    assert found["hangs"].passes
    assert found["good"].mark is CheckStatus.FINE


def test_a_fact_is_found_out_once_and_its_error_said_by_one_check() -> None:
    times = []

    def make() -> int:
        times.append(1)
        raise UsageError("no kubeconfig; make one")

    shared = SharedFact(make, "cluster reachable")
    with pytest.raises(UsageError, match="no kubeconfig"):
        shared.first()
    for _ in range(2):
        with pytest.raises(Skipped, match="see cluster reachable"):
            shared.get()
    assert times == [1]


def test_a_fact_is_referred_to_by_the_title_of_a_check_that_there_is(facts: MakeFacts) -> None:
    titles = {var._title for var in vars(facts()).values() if isinstance(var, SharedFact)}
    assert titles <= {check.title for check in CHECKS}


WRONG, PASSING = from_error("x; y"), from_error("x; y", passes=True)
ENDS: dict[str, tuple[list[CheckResult], int]] = {
    "all fine": ([fine("good")], 0),
    "to know": ([CheckResult(mark=CheckStatus.CAREFUL, found="hm")], 0),
    "not asked": ([CheckResult(mark=CheckStatus.UNASKED, found="why")], 0),
    "to mend": ([fine("good"), WRONG], 1),
    "may pass": ([PASSING], 3),
    "both": ([PASSING, WRONG], 1),
}


@pytest.mark.parametrize(("said", "code"), ENDS.values(), ids=ENDS)
def test_the_exit_code_follows_from_the_marks(
    said: list[CheckResult], code: int, context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (check("one", lambda _: said),))
    if code == 0:
        doctor.examine_all(context(), None, as_json=False, document=False)
        return
    with pytest.raises(TaskFailed, match="test one") as ended:
        doctor.examine_all(context(), None, as_json=False, document=False)
    assert ended.value.exit_code == code


def test_neighbours_that_were_not_asked_for_one_reason_share_a_line(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (check("a", lambda _: fine("good")), raises(Skipped("no VM")), raises(Skipped("no VM")))
    monkeypatch.setattr(doctor, "CHECKS", checks)
    doctor.examine_all(context(), None, as_json=False, document=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["✓ test a good", f"{CheckStatus.UNASKED.value} test, 2 checks no VM"]
    assert lines[2].startswith(f"1 fine ✓, 2 not asked {CheckStatus.UNASKED.value}; 3 checks in ")


def test_a_subject_that_is_none_is_refused_with_those_there_are(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"--only: there is no subject 'clustr'; there are machine, settings"):
        doctor.examine_all(context(), "machine,clustr", as_json=False, document=False)
