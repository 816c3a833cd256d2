"""Model card, README.md of an adapter or a merged model: data, settings, results and check of the training.

Names of files and models are untrusted: they are escaped, and the front matter has only JSON strings.
"""

import json
from pathlib import Path

from bench.records.training import FORM_LABELS, AdapterCheck
from reports import formatting
from reports.read.run import ReportError
from reports.training import summary
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.check import hidden_change_warning

SHOWN_SETTINGS = (
    *("recipe", "base_precision", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "optimizer"),
    *("learning_rate", "max_seq_len", "micro_batch_size", "seed"),
)


def render(trained: TrainedAdapter, check: AdapterCheck | None, *, base: str | None = None) -> str:
    """Return the model card; `base` is the base of a merged model, None for an adapter."""
    trial, record = trained.trial, trained.record
    model = Path(trial.model).name.replace("--", "/")
    front_matter = {
        "base_model": model,
        "library_name": "transformers" if base else "peft",
        "tags": ["lora", "qlora-fleet"],
    }
    kind = f"merged into its {base} base" if base else "adapter"
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front_matter.items()) + "---",
        f"# {formatting.markdown(model)}, fine-tuned: {kind}",
        f"Run {trained.run.run_id}, step {record.adapter_step:,}. Adapter sha256 `{record.adapter_sha256}`; base "
        f"sha256 `{trained.model_sha256}`, as `python -m bench inspect` computes it.",
        "## Results\n\n" + _results(trained),
    ]
    if check is not None:
        rows = [
            f"| {FORM_LABELS[form.name]} | {form.loss:.4f} | "
            f"{'' if form.change is None else f'{form.change:+.4f}'} | {form.unended} of {len(form.answers)} |"
            for form in check.forms
        ]
        header = "| form | held-out loss | change | answers that did not end |\n|---|---|---|---|"
        title = f"## Held-out loss in each form, {len(check.examples):,} examples"
        warnings = [hidden_change_warning(check, form) for form in check.forms]
        lines = [formatting.markdown(warning) for warning in warnings if warning is not None]
        parts.append("\n".join([title, "", header, *rows, *(["", *(f"- {line}" for line in lines)] if lines else [])]))
    data = [f"| {formatting.markdown(path)} | `{sha256}` |" for path, sha256 in trained.data_sha256s.items()]
    parts.append("## Data\n\n" + "\n".join(["| file | sha256 |", "|---|---|", *data]))
    settings = {name: getattr(trial, name) for name in SHOWN_SETTINGS}
    settings["recipe"] = record.fingerprint.get("recipe") or trial.recipe  # the one that was built after a fallback
    values = [f"| {name} | {formatting.markdown(str(value))} |" for name, value in settings.items()]
    parts.append("## Settings\n\n" + "\n".join(["| | |", "|---|---|", *values]))
    return "\n\n".join(parts) + "\n"


def _results(trained: TrainedAdapter) -> str:
    try:
        lines = summary.lines(summary.read(trained.folder))
    except ReportError as error:
        return formatting.markdown(f"Unknown: {error}")
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {formatting.markdown(a)} | {formatting.markdown(b)} |" for a, b in lines)]
    )
