"""`inv adapter.merge`: base and adapter as one model folder, on a worker, after `inv adapter.check` has measured it.

The check has measured what merging does to the held-out loss. Where that is another loss than was trained, beyond its
interval, the merge is refused; `--anyway` makes it all the same, and the model card says so.
"""

from pathlib import Path

from invoke.context import Context

from bench.records.training import AdapterCheck, ServedForm
from tasks.adapter import model_card
from tasks.adapter.artifact import MERGED_FOLDER, TrainedAdapter, on_worker, open_training
from tasks.adapter.check import NAMES, change, differs
from tasks.cli.lock import acquire_lock
from tasks.errors import ConfirmationRequired, UsageError, writing
from tasks.settings.load import load

BASES = ("bf16", "nf4")


def merge_adapter(context: Context, run: str | None, *, base: str, out: str | None, anyway: bool) -> None:
    settings = load(context)
    if base not in BASES:
        raise UsageError(f"adapter.merge: --base: expected one of {', '.join(BASES)}, found {base!r}")
    trained = open_training(settings, run)
    if base == "nf4" and trained.trial.base_precision != "nf4":
        raise UsageError(f"adapter.merge: --base: run {trained.run.run_id} was trained on a bf16 base; leave it out")
    if out is None and settings.fleet.kind != "local":
        raise UsageError("adapter.merge: --out: missing; name a folder as the pods see it, best on the shared volume")
    if out is not None and not Path(out).is_absolute():
        raise UsageError(f"adapter.merge: --out: {out}: expected an absolute path, as the worker sees it")
    found = trained.check()
    if not anyway:
        refuse(trained, found, base)
    place = out or str(trained.folder / MERGED_FOLDER)
    with acquire_lock(settings.results_folder, f"adapter.merge (run {trained.run.run_id})"):
        wish = {
            "model": trained.trial.model,
            "out": place,
            "base": base,
            "card": model_card.written(trained, found, base=base),
            "end_ids": [] if found is None else found.end_ids,
        }
        facts = on_worker(settings, trained, "merge", wish)
        with writing(trained.folder):
            trained.note_merged(place, dict(facts))
    print(f"next: inv adapter.check --run={trained.run.run_id} measures the folder as plain transformers loads it")


def form_of(found: AdapterCheck, base: str) -> ServedForm | None:
    return next((form for form in found.forms if form.name == f"merged-{base}"), None)


def refuse(trained: TrainedAdapter, found: AdapterCheck | None, base: str) -> None:
    """Raises Refused where the merged model was not shown to be what was trained."""
    run_id = trained.run.run_id
    if not trained.record.evaluations:
        raise ConfirmationRequired(
            f"run {run_id}: no data was held out, so no check can be made; --anyway merges all the same"
        )
    form = None if found is None else form_of(found, base)
    if found is None or form is None:
        raise ConfirmationRequired(f"run {run_id}: the adapter was not checked; type: inv adapter.check --run={run_id}")
    if differs(form):
        other = next((b for b in BASES if b != base and (f := form_of(found, b)) is not None and not differs(f)), None)
        way = "" if other is None else f"`inv adapter.merge --base={other}` keeps the loss of the training; "
        far = "beyond the interval" if form.change_low is not None else "over one example, which gives no interval"
        raise ConfirmationRequired(
            f"run {run_id}: {NAMES[form.name]}: {change(form)} nats a token beside what was trained, {far}; "
            f"{way}--anyway merges all the same"
        )
    first = found.forms[0]
    if form.unended > first.unended:
        raise ConfirmationRequired(
            f"run {run_id}: {form.unended} of {len(form.answers)} merged answers did not end, {first.unended} as it "
            "was trained; --anyway merges all the same"
        )
