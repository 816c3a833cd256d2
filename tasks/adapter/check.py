"""`inv adapter.check`: compare the adapter in each form that can be served with the trained one.

One worker measures the held-out loss of each form, on the examples that the training held out; the result is saved in
adapter-check.json. Differences to the trained form are paired by example. A difference is reported if its 95 % interval
excludes 0 and it is at least `MIN_NATS`.

A merge into the base as it was trained on changes the loss by its rounding to bf16 only, which the same check predicts:
it merges in memory, too. The folder must have that loss, to `SAME_NATS`: equal weights, summed in another order.
"""

import shlex

from invoke.context import Context
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records import schema
from bench.records.adapter import FORM_LABELS, MAX_HIDDEN_NATS, MIN_NATS, AdapterCheck, ServedForm
from reports import formatting
from tasks.adapter.artifact import TrainedAdapter, open_training, run_on_worker
from tasks.cli.command_result import CommandResult
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, ruled_table
from tasks.cli.waiting import Wait
from tasks.errors import RetryableError, TaskFailed, results_write_errors
from tasks.settings.layers import Settings, load

FOLDER = "folder"  # the form that is measured only from the files of a merge
SAME_NATS = 0.00005


def check_adapter(context: Context, run: str | None, *, answers: int) -> CommandResult:
    settings = load(context)
    trained = open_training(settings, run)
    with acquire_lock(settings.results_folder, f"adapter.check (run {trained.run.run_id})"):
        check = measure(settings, trained, answers)
    failure = TaskFailed(reason) if (reason := find_failure(trained, check)) else None
    return CommandResult(
        data=schema.to_json(check), show=lambda: print_check(console(), trained, check), failure=failure
    )


def measure(settings: Settings, trained: TrainedAdapter, answers: int) -> AdapterCheck:
    """Measure the adapter on a worker and save the result. Raises task errors."""
    merged = trained.read_merged()
    request = {
        "trial": trained.trial.to_json(),
        "merged": None if merged is None else merged["path"],
        "answers": answers,
    }
    with Wait("adapter.check"):
        result = run_on_worker(settings, trained, "check", request)
    try:
        check = schema.from_json(AdapterCheck, result)
    except schema.SchemaError as error:
        raise RetryableError(
            f"the worker's result is invalid: {error}", remedy="is its bench of another version?"
        ) from error
    with results_write_errors(trained.folder):
        check.write(trained.folder)
    return check


def hidden_change_warning(check: AdapterCheck, form: ServedForm) -> str | None:
    """Return how large a change of the loss the held-out examples could not show; None if it is small or was shown."""
    if form.change is None or form.has_other_loss():
        return None
    examples = formatting.count(len(check.examples), "held-out example")
    advice = "hold out more (train.validation_fraction)"
    if form.change_low is None or form.change_high is None:
        return f"{FORM_LABELS[form.name]}: {examples} cannot show whether the loss changed; {advice}"
    hidden = max(abs(form.change_low), abs(form.change_high))
    if hidden < MAX_HIDDEN_NATS:
        return None
    return (
        f"{FORM_LABELS[form.name]}: {format_change(form)} nats a token; over {examples} a change of up to {hidden:.2f} "
        f"is not shown to differ from 0: {advice}"
    )


def find_failure(trained: TrainedAdapter, check: AdapterCheck) -> str | None:
    """Return why the check fails: the training's loss is not reproduced, or the merged folder is another model."""
    recorded = next(
        (evaluation for evaluation in trained.record.evaluations if evaluation.step == trained.record.adapter_step),
        None,
    )
    first = check.forms[0]
    if recorded is not None and abs(first.loss - recorded.loss) > MIN_NATS:
        return (
            f"the adapter's held-out loss is {first.loss:.4f}, the training recorded {recorded.loss:.4f}; data, "
            "device or versions differ from those of the training"
        )
    folder = next((form for form in check.forms if form.name == FOLDER), None)
    if folder is None:
        return None
    label, base = FORM_LABELS[FOLDER], (trained.read_merged() or {}).get("base")
    predicted = check.merged_form(base)
    if predicted is not None and abs(folder.loss - predicted.loss) > SAME_NATS:
        again = f"inv adapter.merge --run={trained.run.run_id} --base={base} --out={shlex.quote(str(check.merged))}"
        return (
            f"{label}'s loss is {folder.loss:.5f}, that of the same merge in memory {predicted.loss:.5f}; remove "
            f"{check.merged}, then type: {again}"
        )
    if folder.is_another_model(base, trained.trial.base_precision):
        change = format_change(folder)
        return f"{label}'s loss differs from the trained one by {change} nats a token; serve another form"
    if folder.unended > first.unended:
        return (
            f"{folder.unended} of {len(folder.answers)} answers of {label} did not end, {first.unended} as trained; "
            f"{check.merged}/generation_config.json: eos_token_id must be the tokens {check.end_ids}"
        )
    return None


def print_check(out: Console, trained: TrainedAdapter, check: AdapterCheck) -> None:
    out.print(
        Text(
            f"adapter {check.adapter_sha256[:12]} of run {trained.run.run_id}: {len(check.examples):,} held-out "
            f"examples, {sum(check.targets):,} targets, products in {check.arithmetic} on {check.device}"
        )
    )
    out.print(check_table(check))
    for form in check.forms[1:]:
        if form.has_other_loss():
            change = format_change(form)
            out.print(Text(f"! {FORM_LABELS[form.name]}: {change} nats a token compared with the trained form"))
        elif (warning := hidden_change_warning(check, form)) is not None:
            out.print(Text(f"! {warning}"))
    for form in check.forms:
        if form.unended:
            out.print(Text(f"! {FORM_LABELS[form.name]}: {form.unended} of {len(form.answers)} answers did not end"))
    if check.merged is None and (base := check.best_base(trained.trial.base_precision)) is not None:
        out.print(Text(f"next: inv adapter.merge --run={trained.run.run_id} --base={base} adapter.check"))


def check_table(check: AdapterCheck) -> Table:
    first = check.forms[0]
    numbers = ("held-out loss", "change", "same answers", "not ended")
    table = ruled_table("form", *numbers, right=numbers)
    for form in check.forms:
        interval = "" if form.low is None or form.high is None else f" ({form.low:.4f} to {form.high:.4f})"
        same = sum(trained == other for trained, other in zip(first.answers, form.answers, strict=True))
        count = len(form.answers)
        cells = (f"{form.loss:.4f}{interval}", format_change(form), f"{same} of {count}", f"{form.unended} of {count}")
        table.add_row(FORM_LABELS[form.name], *cells)
    return table


def format_change(form: ServedForm) -> str:
    if form.change is None:
        return ""
    interval = "" if form.change_low is None else f" ({form.change_low:+.4f} to {form.change_high:+.4f})"
    return f"{form.change:+.4f}{interval}"
