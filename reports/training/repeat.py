"""The commands that continue a training or repeat it, and the settings that repeating needs."""

import contextlib
import json

from bench.records.validation import AUTO, LORA_TARGETS
from reports.read.loaded_run import ReportError
from reports.training.training_facts import TrainingReport, check_command, read_check

SETTINGS_FILE = "settings.json"
# The configuration of a trial, which a benchmark may have recommended: settings of the same names.
CONFIGURATION = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "gradient_checkpointing", "held_layers", "matmul"),
)
REPEATED_SECTIONS = ("model", "data", "train")  # these settings determine the result


def commands(training: TrainingReport) -> list[tuple[str, str]]:
    """Return pairs of purpose and command, the most useful first."""
    run_id = training.folder.name
    report = f"{training.folder.parent.name}/{run_id}/report"
    repeat = ("repeat it with the same settings", f"inv -f {report}/{SETTINGS_FILE} train")
    if not training.has_succeeded:
        return [("resume from the last checkpoint", f"inv train --resume={run_id}"), repeat]
    if not training.record.evaluations:  # adapter.check needs held-out data
        return [("merge it into one model folder", f"inv adapter.merge --run={run_id} --force"), repeat]
    measure, base = ("measure the adapter in each form that can be served", check_command(training)), None
    with contextlib.suppress(ReportError):  # without a check there is no merge
        base = read_check(training).best_base(training.run.planned[0].trial.base_precision)
    merge = ("merge it into one model folder", f"inv adapter.merge --run={run_id} --base={base}")
    return [measure if base is None else merge, repeat]


def repeat_settings(training: TrainingReport) -> bytes:
    """Return a file for `inv -f`: the run's REPEATED_SECTIONS, profile, number of workers and their working folder.

    Not covered: which layers a recommended configuration recomputes or offloads, which have no settings.
    """
    settings, trial = training.run.settings, training.run.planned[0].trial
    sections = {name: settings[name] for name in REPEATED_SECTIONS if name in settings}
    sections |= {"bench": {"profile": training.run.profile}, "fleet": {"size": trial.world_size}}
    if (workspace := settings.get("fleet", {}).get("workspace")) is not None:
        sections["fleet"]["workspace"] = workspace
    if (train := sections.get("train")) is not None:
        values = {name: AUTO if name in trial.derive else getattr(trial, name) for name in CONFIGURATION}
        values["workers"] = None if train.get("workers") is None else trial.world_size
        names = {targets: name for name, targets in LORA_TARGETS.items()}
        values["lora_targets"] = names.get(trial.lora_targets, train.get("lora_targets"))
        sections["train"] = train | {name: value for name, value in values.items() if name in train}
    return (json.dumps(sections, indent=1, ensure_ascii=False) + "\n").encode()
