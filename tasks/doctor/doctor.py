"""`inv doctor`: runs the checks, prints a line for each answer, and ends with 0, 1 or 3."""

from itertools import groupby
from time import monotonic

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from tasks.cli.terminal import console
from tasks.doctor import output
from tasks.doctor.context import CheckContext
from tasks.doctor.docs import DOCUMENT, text
from tasks.doctor.registry import CHECKS, SUBJECTS
from tasks.doctor.result import CheckStatus
from tasks.doctor.runner import examine
from tasks.errors import RetryableError, TaskFailed, UsageError, file_errors
from tasks.settings.load import load


def examine_all(context: Context, only: str | None, *, as_json: bool, document: bool) -> None:
    settings, subjects = load(context), _subjects(only)
    if document:
        path = settings.root / DOCUMENT
        with file_errors(f"{path}: cannot be written", "; see its folder's owner and space"):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, text(CHECKS).encode())
        print(f"wrote {DOCUMENT}: {len(CHECKS)} checks")
        return
    began, asked = monotonic(), list[output.Asked]()
    checks = [check for check in CHECKS if not subjects or check.subject in subjects]
    facts, screen = CheckContext(settings, context.config, subjects), console()
    width = max(len(check.title) for check in checks)
    for _, about_one in groupby(examine(checks, facts), key=lambda one: one[0].subject):
        said = list(about_one)
        asked += said
        if not as_json:
            output.show(screen, said, width)
    took_sec = monotonic() - began
    print(output.document(asked, took_sec) if as_json else output.summary(asked, took_sec), flush=True)
    facts.close()
    _end(asked)


def _subjects(only: str | None) -> frozenset[str]:
    """The subjects that --only names; none means all. Raises UsageError."""
    names = frozenset(filter(None, (one.strip() for one in (only or "").split(","))))
    if unknown := sorted(names.difference(SUBJECTS)):
        raise UsageError(f"doctor: --only: there is no subject {unknown[0]!r}; there are {', '.join(SUBJECTS)}")
    return names


def _end(asked: list[output.Asked]) -> None:
    """Raise what the exit code follows from: TaskFailed for what must be mended, Resumable for what may pass."""
    wrong = [(check.title, one) for check, said in asked for one in said if one.mark is CheckStatus.WRONG]
    lasting = [title for title, one in wrong if not one.passes]
    if lasting:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise TaskFailed(
            f"doctor: {lasting[0]}{more}: each line with {CheckStatus.WRONG.value} ends with what mends it"
        )
    if wrong:
        raise RetryableError(f"doctor: {wrong[0][0]}: that may pass; `inv doctor` asks again")
