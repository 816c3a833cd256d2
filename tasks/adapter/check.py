"""`inv adapter.check`: is what will be served what was trained?

One worker measures the held-out loss of the adapter in each form that it can be served in, on the examples that the
training has held out; the answer is kept in adapter-check.json. A difference to the trained form is taken example by
example. It is named where its 95 % interval leaves out 0 and it is at least `LEAST_NATS`.
"""

import json

from invoke.context import Context
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records import schema
from bench.records.training import AdapterCheck, ServedForm
from tasks.adapter.artifact import TrainedAdapter, on_worker, open_training, print_line
from tasks.cli.flags import number
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, ruled
from tasks.errors import RetryableError, TaskFailed, writing
from tasks.settings.load import Settings, load

LEAST_NATS = 0.002
NAMES = {
    "trained": "as it was trained",
    "bf16": "adapter on the bf16 base",
    "merged-bf16": "merged, --base=bf16",
    "merged-nf4": "merged, --base=nf4",
    "folder": "the merged folder",
}


def check_adapter(context: Context, run: str | None, *, answers: str, as_json: bool) -> None:
    settings = load(context)
    count = number(
        "adapter.check: --answers", answers, "a whole number from 0 to 1000", lambda given: 0 <= given <= 1000
    )
    trained = open_training(settings, run)
    with acquire_lock(settings.results_folder, f"adapter.check (run {trained.run.run_id})"):
        found = measured(settings, trained, int(count), quiet=as_json)
    if as_json:
        print(json.dumps(schema.to_json(found), indent=1, ensure_ascii=False))
    else:
        show(console(), trained, found)
    if wrong := broken(trained, found):
        raise TaskFailed(wrong)


def measured(settings: Settings, trained: TrainedAdapter, answers: int, *, quiet: bool) -> AdapterCheck:
    """Have a worker measure, and keep the answer. Raises a task's errors."""
    merged = trained.merged()
    wish = {
        "trial": trained.trial.to_json(),
        "merged": None if merged is None else merged["path"],
        "answers": answers,
    }
    answer = on_worker(settings, trained, "check", wish, (lambda _: None) if quiet else print_line)
    try:
        found = schema.from_json(AdapterCheck, answer)
    except schema.SchemaError as error:
        raise RetryableError(f"the worker's answer cannot be read: {error}; is its bench of another version?") from None
    with writing(trained.folder):
        found.write(trained.folder)
    return found


def differs(form: ServedForm) -> bool:
    """Whether a form has another loss than the trained one, beyond the interval of their difference."""
    if form.change is None or abs(form.change) < LEAST_NATS:
        return False
    return form.change_low is None or form.change_high is None or form.change_low > 0 or form.change_high < 0


def broken(trained: TrainedAdapter, found: AdapterCheck) -> str | None:
    """What makes the check fail: the training's own loss is not found again, or the merged folder is another model."""
    recorded = next(
        (evaluation for evaluation in trained.record.evaluations if evaluation.step == trained.record.adapter_step),
        None,
    )
    first = found.forms[0]
    if recorded is not None and abs(first.loss - recorded.loss) > LEAST_NATS:
        return (
            f"the adapter's held-out loss is {first.loss:.4f}, the training has recorded {recorded.loss:.4f}; data, "
            "device or versions are not those of the training"
        )
    served = found.forms[-1]
    if served.name == "folder" and differs(served):
        return f"the merged folder is not what was trained: {change(served)} nats a token; serve another form"
    if served.name == "folder" and served.unended > first.unended:
        return (
            f"{served.unended} of {len(served.answers)} answers of the merged folder did not end, {first.unended} as "
            f"it was trained; {found.merged}/generation_config.json: eos_token_id must name the tokens {found.end_ids}"
        )
    return None


def show(out: Console, trained: TrainedAdapter, found: AdapterCheck) -> None:
    out.print(
        Text(
            f"adapter {found.adapter_sha256[:12]} of run {trained.run.run_id}: {len(found.examples):,} held-out "
            f"examples, {sum(found.targets):,} targets, products in {found.arithmetic} on {found.device}"
        )
    )
    out.print(table(found))
    for form in found.forms[1:]:
        if differs(form):
            out.print(Text(f"! {NAMES[form.name]}: {change(form)} nats a token beside what was trained"))
    for form in found.forms:
        if form.unended:
            out.print(Text(f"! {NAMES[form.name]}: {form.unended} of {len(form.answers)} answers did not end"))
    if found.merged is None:
        out.print(Text(f"next: inv adapter.merge --run={trained.run.run_id}, then check again: it measures the folder"))


def table(found: AdapterCheck) -> Table:
    first = found.forms[0]
    numbers = ("held-out loss", "beside the first", "same answers", "not ended")
    shown = ruled("form", *numbers, right=numbers)
    for form in found.forms:
        between = "" if form.low is None or form.high is None else f" ({form.low:.4f} to {form.high:.4f})"
        same = sum(mine == its for mine, its in zip(first.answers, form.answers, strict=True))
        count = len(form.answers)
        cells = (f"{form.loss:.4f}{between}", change(form), f"{same} of {count}", f"{form.unended} of {count}")
        shown.add_row(NAMES[form.name], *cells)
    return shown


def change(form: ServedForm) -> str:
    if form.change is None:
        return ""
    between = "" if form.change_low is None else f" ({form.change_low:+.4f} to {form.change_high:+.4f})"
    return f"{form.change:+.4f}{between}"
