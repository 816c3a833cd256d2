"""`inv doctor`: run the checks, print a line for each result, and exit with 0, 1 or 3."""

from collections.abc import Iterable
from itertools import groupby
from time import monotonic

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from tasks.cli.terminal import console
from tasks.clients.provider import known_provider
from tasks.doctor import output
from tasks.doctor.context import CheckContext
from tasks.doctor.docs import DOCUMENT_PATH, render
from tasks.doctor.registry import all_checks
from tasks.doctor.runner import run_checks
from tasks.errors import RetryableError, TaskFailed, UsageError, file_errors
from tasks.faults import CheckStatus
from tasks.settings.load import load


def run_doctor(context: Context, only: str | None, *, as_json: bool, document: bool) -> None:
    settings, every_check = load(context), all_checks()
    subjects = _parse_subjects(only, dict.fromkeys(check.subject for check in every_check))
    if document:
        path = settings.root / DOCUMENT_PATH
        with file_errors(f"{path}: cannot be written", "check owner and free space of its folder"):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, render(every_check).encode())
        print(f"wrote {DOCUMENT_PATH}: {len(every_check)} checks")
        return
    started, outcomes = monotonic(), list[output.CheckOutcome]()
    provider = known_provider(settings)
    own_checks = every_check if provider is None else all_checks((provider,))
    checks = [check for check in every_check if check.subject in subjects] if subjects else own_checks
    check_context, screen = CheckContext(settings, context.config, subjects), console()
    width = max(len(check.title) for check in checks)
    for _, group in groupby(run_checks(checks, check_context), key=lambda outcome: outcome[0].subject):
        subject_outcomes = list(group)
        outcomes += subject_outcomes
        if not as_json:
            output.print_subject(screen, subject_outcomes, width)
    elapsed_sec = monotonic() - started
    print(output.to_json(outcomes, elapsed_sec) if as_json else output.summary(outcomes, elapsed_sec), flush=True)
    check_context.close()
    _raise_for_failures(outcomes)


def _parse_subjects(only: str | None, known: Iterable[str]) -> frozenset[str]:
    """Return the subjects that --only names; an empty set means all. Raises UsageError."""
    names = frozenset(filter(None, (name.strip() for name in (only or "").split(","))))
    if unknown := sorted(names.difference(known)):
        raise UsageError(
            f"doctor: --only: there is no subject {unknown[0]!r}", remedy=f"expected some of {', '.join(known)}"
        )
    return names


def _raise_for_failures(outcomes: list[output.CheckOutcome]) -> None:
    """Raise TaskFailed if a check failed, or RetryableError if all failures are transient."""
    failures = [
        (check.title, result) for check, results in outcomes for result in results if result.status is CheckStatus.FAIL
    ]
    permanent = [title for title, result in failures if not result.is_transient]
    if permanent:
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise TaskFailed(f"doctor: {permanent[0]}{more}: each line with {CheckStatus.FAIL.value} ends with its fix")
    if failures:
        raise RetryableError(f"doctor: {failures[0][0]}: the failure may be transient", remedy="rerun `inv doctor`")
