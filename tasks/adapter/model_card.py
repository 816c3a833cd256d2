"""The model card, README.md of an adapter or a merged model: what it was trained on, how, at what cost, and the proof.

Names of files and models are somebody's words: they are escaped, and the front matter holds JSON strings alone.
"""

import json
from pathlib import Path

from bench.records.training import AdapterCheck
from reports import formatting
from reports.read.run import ReportError
from reports.training import summary
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.check import NAMES

SETTINGS = (
    *("recipe", "base_precision", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "optimizer"),
    *("learning_rate", "max_seq_len", "micro_batch_size", "seed"),
)


def written(trained: TrainedAdapter, found: AdapterCheck | None, *, base: str | None = None) -> str:
    """The card; `base` is that of a merge, None for the adapter by itself."""
    trial, record = trained.trial, trained.record
    model = Path(trial.model).name.replace("--", "/")
    front = {"base_model": model, "library_name": "transformers" if base else "peft", "tags": ["lora", "qlora-fleet"]}
    what = f"merged into its {base} base" if base else "adapter"
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items()) + "---",
        f"# {formatting.markdown(model)}, fine-tuned: {what}",
        f"Run {trained.run.run_id}, step {record.adapter_step:,}. Adapter sha256 `{record.adapter_sha256}`; base "
        f"sha256 `{trained.model_sha256}`, as `python -m bench inspect` computes it.",
        "## Results\n\n" + _results(trained),
    ]
    if found is not None:
        rows = [
            f"| {NAMES[form.name]} | {form.loss:.4f} | "
            f"{'' if form.change is None else f'{form.change:+.4f}'} | {form.unended} of {len(form.answers)} |"
            for form in found.forms
        ]
        head = "| form | held-out loss | beside the first | answers that did not end |\n|---|---|---|---|"
        parts.append(f"## Held-out loss in each form, {len(found.examples):,} examples\n\n" + "\n".join([head, *rows]))
    data = [f"| {formatting.markdown(path)} | `{sha256}` |" for path, sha256 in trained.files.items()]
    parts.append("## Data\n\n" + "\n".join(["| file | sha256 |", "|---|---|", *data]))
    values = [f"| {name} | {formatting.markdown(str(getattr(trial, name)))} |" for name in SETTINGS]
    parts.append("## Settings\n\n" + "\n".join(["| | |", "|---|---|", *values]))
    return "\n\n".join(parts) + "\n"


def _results(trained: TrainedAdapter) -> str:
    try:
        lines = summary.lines(summary.read(trained.folder))
    except ReportError as error:
        return formatting.markdown(f"Not known: {error}")
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {formatting.markdown(a)} | {formatting.markdown(b)} |" for a, b in lines)]
    )
