"""`inv doctor`: run the checks, print a line for each result, and exit with 0, 1 or 3.

docs/troubleshooting.md is generated from the checks, so that it has the same texts:
`UPDATE_GOLDEN=1 pytest tests/unit/tasks/doctor/test_docs.py`.
"""

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from time import monotonic
from typing import Any

from invoke.context import Context
from rich.console import Console
from rich.text import Text

from remote.providers import PROVIDERS, Provider
from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console
from tasks.clients.target_cluster import known_provider
from tasks.doctor.check import Check, CheckContext, run_checks
from tasks.doctor.checks import cluster, machine, runs, settings, vm
from tasks.errors import RetryableError, TaskFailed, UsageError, escape_controls
from tasks.faults import CheckResult, CheckStatus
from tasks.settings.layers import load

CheckOutcome = tuple[Check, Sequence[CheckResult]]


def all_checks(providers: Iterable[Provider] | None = None) -> tuple[Check, ...]:
    """Return the checks of any cluster, and those of the given providers; None: of all providers."""
    modules = [module for provider in providers or PROVIDERS.values() for module in provider.checks]
    return (
        *(*machine.CHECKS, *settings.CHECKS, *machine.GPU_CHECKS, *runs.MODEL_CHECKS, *runs.CHECKS),
        *(check for module in modules for check in importlib.import_module(module).CHECKS),
        *(*vm.CHECKS, *vm.REGISTRY_CHECKS, *cluster.CHECKS, *cluster.NODE_CHECKS, *cluster.POD_CHECKS),
    )


def run_doctor(context: Context, only: str | None) -> CommandResult:
    settings, every_check = load(context), all_checks()
    subjects = _parse_subjects(only, dict.fromkeys(check.subject for check in every_check))
    started, outcomes = monotonic(), list[CheckOutcome]()
    provider = known_provider(settings)
    own_checks = every_check if provider is None else all_checks((provider,))
    checks = [check for check in every_check if check.subject in subjects] if subjects else own_checks
    check_context, screen = CheckContext(settings, subjects), console()
    width = max(len(check.title) for check in checks)
    for _, group in groupby(run_checks(checks, check_context), key=lambda outcome: outcome[0].subject):
        subject_outcomes = list(group)
        outcomes += subject_outcomes
        print_subject(screen, subject_outcomes, width)
    elapsed_sec = monotonic() - started
    print(summary(outcomes, elapsed_sec), flush=True)
    check_context.close()
    return CommandResult(data=to_document(outcomes, elapsed_sec), failure=_find_failure(outcomes))


def _parse_subjects(only: str | None, known: Iterable[str]) -> frozenset[str]:
    """Return the subjects that --only names; an empty set means all. Raises UsageError."""
    names = frozenset(filter(None, (name.strip() for name in (only or "").split(","))))
    if unknown := sorted(names.difference(known)):
        raise UsageError(
            f"doctor: --only: there is no subject {unknown[0]!r}", remedy=f"expected some of {', '.join(known)}"
        )
    return names


def _find_failure(outcomes: list[CheckOutcome]) -> TaskFailed | None:
    """Return TaskFailed if a check failed, RetryableError if all failures are transient."""
    failures = [
        (check.title, result) for check, results in outcomes for result in results if result.status is CheckStatus.FAIL
    ]
    permanent = [title for title, result in failures if not result.is_transient]
    if permanent:
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        return TaskFailed(f"doctor: {permanent[0]}{more}: each line with {CheckStatus.FAIL.mark} ends with its fix")
    if failures:
        return RetryableError(f"doctor: {failures[0][0]}: the failure may be transient", remedy="rerun `inv doctor`")
    return None


def print_subject(screen: Console, outcomes: Sequence[CheckOutcome], width: int) -> None:
    """Print the results of a subject, one line each; consecutive equal results share a line."""
    rows = [
        (result.status, escape_controls("; ".join(filter(None, (result.message, result.remedy)))), check.title)
        for check, results in outcomes
        for result in results
    ]
    for (status, text), same in groupby(rows, key=lambda row: row[:2]):
        titles, style = [title for *_, title in same], status.style
        title = titles[0] if len(titles) == 1 else f"{outcomes[0][0].subject}, {len(titles)} checks"
        styled_text = (text, style if status is CheckStatus.SKIP else "")
        screen.print(Text.assemble((status.mark, style), " ", f"{title:<{width}}", "  ", styled_text))


def summary(outcomes: Sequence[CheckOutcome], elapsed_sec: float) -> str:
    """Return the number of results with each status, and the elapsed seconds."""
    counter = Counter(result.status for _, results in outcomes for result in results)
    counts = [f"{counter[status]} {status.label} {status.mark}" for status in CheckStatus if counter[status]]
    return f"{', '.join(counts)}; {len(outcomes)} checks in {elapsed_sec:.1f} s"


def to_document(outcomes: Sequence[CheckOutcome], elapsed_sec: float) -> dict[str, Any]:
    """Return the outcomes as JSON for programs."""
    rows = [
        {
            "subject": check.subject,
            "check": check.name,
            "asks": check.question,
            "state": result.status.json_state,
            "found": result.message,
            "remedy": result.remedy or None,
            "may_pass": result.is_transient,
        }
        for check, results in outcomes
        for result in results
    ]
    return {"took_sec": round(elapsed_sec, 2), "answers": rows}
