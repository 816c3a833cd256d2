"""The checks side by side, each in a thread of its own, all with one deadline.

A check that does not end is left behind: its thread dies with the command, so that nothing that hangs can hold it up.
"""

import threading
from collections.abc import Iterator, Sequence
from time import monotonic

from remote.hosts.host import HostError
from tasks.doctor.check import Check
from tasks.doctor.context import WITHIN_SEC, CheckContext, as_of_vm
from tasks.doctor.result import CheckResult, CheckStatus, Skipped, from_error
from tasks.errors import RetryableError, TaskFailed


def examine(
    checks: Sequence[Check], facts: CheckContext, within_sec: float = WITHIN_SEC
) -> Iterator[tuple[Check, list[CheckResult]]]:
    """Each check with its answers, in the order of the checks, as soon as those before it are there."""
    until = monotonic() + within_sec
    running = [_Running(check, facts) for check in checks]
    for one in running:
        one.ended.wait(max(0.0, until - monotonic()))
        yield one.check, one.answers or [_silent(within_sec)]


class _Running:
    """A check in its thread. `answers` is empty until it has ended."""

    def __init__(self, check: Check, facts: CheckContext) -> None:
        self.check, self.ended = check, threading.Event()
        self.answers: list[CheckResult] = []
        threading.Thread(target=self._run, args=(facts,), name=check.title, daemon=True).start()

    def _run(self, facts: CheckContext) -> None:
        self.answers = answers(self.check, facts)
        self.ended.set()


def answers(check: Check, facts: CheckContext) -> list[CheckResult]:
    """What a check says; every error is an answer."""
    try:
        with as_of_vm():
            found = check.look(facts)
    except Skipped as why:
        return [CheckResult(mark=CheckStatus.UNASKED, found=str(why))]
    except TaskFailed as error:
        return [from_error(str(error), passes=isinstance(error, RetryableError))]
    except TimeoutError:
        return [_silent(WITHIN_SEC)]
    except (OSError, HostError) as error:
        return [from_error(f"{error}")]
    except Exception as error:  # noqa: BLE001 - a fault of ours must not hide what the other checks found
        where = f"{type(error).__name__}: {error}"
        return [from_error(f"the check itself failed: {where}; report it, with the output of `inv doctor --json`")]
    return [found] if isinstance(found, CheckResult) else list(found)


def _silent(within_sec: float) -> CheckResult:
    found = f"no answer within {within_sec:g} s"
    remedy = "see the network, the VPN or the bastion to it, then the same again"
    return CheckResult(mark=CheckStatus.WRONG, found=found, remedy=remedy, passes=True)
