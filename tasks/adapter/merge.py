"""`inv adapter.merge`: merge base and adapter into one model folder, after `inv adapter.check`.

The check measures the effect of merging on the held-out loss. If the loss differs from the trained one beyond its
interval, the merge is refused; `--force` merges nevertheless.
"""

from pathlib import Path

from invoke.context import Context

from bench.records.adapter import BASES, FORM_LABELS, AdapterCheck
from tasks.adapter.artifact import MERGED, VOLUME, TrainedAdapter, open_training, run_on_worker
from tasks.adapter.check import format_change, hidden_change_warning
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.lock import acquire_lock
from tasks.cli.waiting import Wait
from tasks.errors import ConfirmationRequired, UsageError, results_write_errors
from tasks.settings.layers import load


def merge_adapter(
    context: Context,
    run: str | None,
    *,
    base: str,
    out: str | None,
    force: bool,
    dry_run: bool = False,
) -> CommandResult | None:
    settings = load(context)
    if base not in BASES:
        raise UsageError(f"adapter.merge: --base: expected one of {', '.join(BASES)}, found {base!r}")
    trained = open_training(settings, run)
    if base == "nf4" and trained.trial.base_precision != "nf4":
        raise UsageError(
            f"adapter.merge: --base: run {trained.run.run_id} was trained on a bf16 base", remedy="omit it"
        )
    if out is None and not settings.connector.is_local and settings.shared_results is None:
        raise UsageError("adapter.merge: --out: missing", remedy="name a folder in the pods, best on the shared volume")
    if out is not None and not Path(out).is_absolute():
        raise UsageError(f"adapter.merge: --out: {out}: expected an absolute path on the worker")
    check = trained.read_check()
    if not force:
        require_same_loss(trained, check, base)
    form = None if check is None else check.merged_form(base)
    if check is not None and form is not None and (warning := hidden_change_warning(check, form)) is not None:
        print(f"! {warning}")
    is_local = settings.connector.is_local
    merged_folder = out or (str(trained.folder / MERGED) if is_local else f"{VOLUME}/merged/{trained.run.run_id}")
    if dry_run:
        verdict = "not checked" if check is None else f"checked over {len(check.examples):,} held-out examples"
        lines = [f"merge  run {trained.run.run_id} into its {base} base: {merged_folder}", verdict]
        return plan_result(
            lines,
            run=trained.run.run_id,
            base=base,
            folder=merged_folder,
            checked=check is not None,
        )
    with acquire_lock(settings.results_folder, f"adapter.merge (run {trained.run.run_id})"):
        request = {
            "model": trained.trial.model,
            "out": merged_folder,
            "base": base,
            "end_ids": [*trained.record.end_ids, *([] if check is None else check.end_ids)],
        }
        with Wait("adapter.merge"):
            facts = run_on_worker(settings, trained, "merge", request)
        with results_write_errors(trained.folder):
            trained.write_merged(merged_folder, dict(facts))
    if trained.record.evaluations:  # else there is nothing to measure it on
        print(f"next: inv adapter.check --run={trained.run.run_id}")
    return None


def require_same_loss(trained: TrainedAdapter, check: AdapterCheck | None, base: str) -> None:
    """Raise ConfirmationRequired unless the check shows that the merged model has the trained loss."""
    run_id = trained.run.run_id
    if not trained.record.evaluations:
        raise ConfirmationRequired(
            f"run {run_id}: no data was held out, so no check is possible", remedy="--force merges nevertheless"
        )
    form = None if check is None else check.merged_form(base)
    if check is None or form is None:
        raise ConfirmationRequired(
            f"run {run_id}: the adapter was not checked", remedy=f"type: inv adapter.check --run={run_id}"
        )
    if form.is_another_model(base, trained.trial.base_precision):
        better_base = check.best_base(trained.trial.base_precision)
        alternative = f"`inv adapter.merge --base={better_base}` keeps the trained loss; " if better_base else ""
        evidence = "beyond the interval" if form.change_low is not None else "over one example, without an interval"
        change = f"{format_change(form)} nats a token compared with the trained form"
        raise ConfirmationRequired(
            f"run {run_id}: {FORM_LABELS[form.name]}: {change}, {evidence}",
            remedy=f"{alternative}--force merges nevertheless",
        )
    first = check.forms[0]
    if form.unended > first.unended:
        raise ConfirmationRequired(
            f"run {run_id}: {form.unended} of {len(form.answers)} merged answers did not end, {first.unended} as "
            "trained",
            remedy="--force merges nevertheless",
        )
