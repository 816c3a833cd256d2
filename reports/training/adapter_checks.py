"""The adapter's check by `inv adapter.check`: read, validated, and as rows of the page."""

from collections.abc import Sequence

from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE
from bench.records.training import FORM_LABELS, AdapterCheck, ServedForm
from reports.read import validation
from reports.read.run import ReportError
from reports.training.summary import SummaryRow, TrainingReport


def read(training: TrainingReport) -> AdapterCheck:
    """Load the check of the training's adapter. Raises ReportError if it is missing, another adapter's or invalid."""
    path = training.folder / ADAPTER_CHECK_FILE
    remedy = f"run `{command(training)}`"
    try:
        check = AdapterCheck.read(path)
    except ResultError as error:
        raise ReportError.from_error(error, remedy=remedy) from error
    if check.adapter_sha256 != training.record.adapter_sha256:
        raise ReportError(f"{path}: belongs to another adapter than the run's", remedy=remedy)
    if (fault := _fault(check)) is not None:
        raise ReportError(f"{path}: {fault}", remedy=remedy)
    return check


def rows(training: TrainingReport) -> list[SummaryRow]:
    """Return the held-out loss of each checked form, or why it is missing; [] without an adapter or held-out data."""
    if training.record.adapter_sha256 is None or not training.record.evaluations:
        return []
    if not (training.folder / ADAPTER_CHECK_FILE).exists():
        return [("adapter's check", f"not done; run `{command(training)}`")]
    try:
        check = read(training)
    except ReportError as error:
        return [("adapter's check", f"not usable: {error}")]
    return [(f"check, {FORM_LABELS.get(form.name, form.name)}", _form(form)) for form in check.forms]


def command(training: TrainingReport) -> str:
    return f"inv adapter.check --run={training.folder.name}"


def _form(form: ServedForm) -> str:
    interval = "" if form.low is None or form.high is None else f" ({form.low:.4f} to {form.high:.4f})"
    change = ""
    if form.change is not None:
        ends = (
            ""
            if form.change_low is None or form.change_high is None
            else f" ({form.change_low:+.4f} to {form.change_high:+.4f})"
        )
        change = f", {form.change:+.4f}{ends} compared with the trained form"
    unended = f"; {form.unended} of {len(form.answers)} answers did not end" if form.unended else ""
    return f"{form.loss:.4f}{interval}{change}{unended}"


def _fault(check: AdapterCheck) -> str | None:
    lengths: Sequence[int] = (len(check.examples), len(set(check.examples)), len(check.losses), len(check.targets))
    if len(set(lengths)) != 1 or min(check.targets, default=1) < 1 or not check.forms:
        return "its losses, targets and examples do not match"
    return validation.numbers_fault(check)
