"""`inv doctor`: run the checks, print a line for each result, and exit with 0, 1 or 3."""

from itertools import groupby
from time import monotonic

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from tasks.cli.terminal import console
from tasks.doctor import output
from tasks.doctor.context import CheckContext
from tasks.doctor.docs import DOCUMENT_PATH, render
from tasks.doctor.registry import CHECKS, SUBJECTS
from tasks.doctor.result import CheckStatus
from tasks.doctor.runner import run_checks
from tasks.errors import RetryableError, TaskFailed, UsageError, file_errors
from tasks.settings.load import load


def run_doctor(context: Context, only: str | None, *, as_json: bool, document: bool) -> None:
    settings, subjects = load(context), _parse_subjects(only)
    if document:
        path = settings.root / DOCUMENT_PATH
        with file_errors(f"{path}: cannot be written", "; check owner and free space of its folder"):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, render(CHECKS).encode())
        print(f"wrote {DOCUMENT_PATH}: {len(CHECKS)} checks")
        return
    started, outcomes = monotonic(), list[output.CheckOutcome]()
    checks = [check for check in CHECKS if not subjects or check.subject in subjects]
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


def _parse_subjects(only: str | None) -> frozenset[str]:
    """Return the subjects that --only names; an empty set means all. Raises UsageError."""
    names = frozenset(filter(None, (name.strip() for name in (only or "").split(","))))
    if unknown := sorted(names.difference(SUBJECTS)):
        raise UsageError(f"doctor: --only: there is no subject {unknown[0]!r}; expected some of {', '.join(SUBJECTS)}")
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
        raise RetryableError(f"doctor: {failures[0][0]}: the failure may be transient; rerun `inv doctor`")
