"""The commands that continue a training or repeat it, and the files that repeating needs."""

import contextlib
import json

from bench.records.trial import Trial
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS, AUTO
from reports.read.loaded_run import ReportError
from reports.training.training_facts import TrainingReport, check_command, read_check

SETTINGS_FILE, TRIAL_FILE = "settings.json", "trial.json"
# Fields of a trial that a trial file sets: those with a setting of the same name, and those without a setting.
CONFIGURATION = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "gradient_checkpointing", "held_layers", "matmul"),
)
FILE_ONLY = ("checkpoint_every", "offload_checkpoints")
REPEATED_SECTIONS = ("model", "data", "train")  # these settings determine the result


def commands(training: TrainingReport) -> list[tuple[str, str]]:
    """Return pairs of purpose and command, the most useful first."""
    run_id = training.folder.name
    report = f"{training.folder.parent.name}/{run_id}/report"
    trial = f" --trial-file={report}/{TRIAL_FILE}" if has_trial_file(training) else ""
    repeat = ("repeat it with the same settings", f"inv -f {report}/{SETTINGS_FILE} train{trial}")
    if not training.has_succeeded:
        return [("resume from the last checkpoint", f"inv train --resume={run_id}"), repeat]
    if not training.record.evaluations:  # adapter.check needs held-out data
        return [("merge it into one model folder", f"inv adapter.merge --run={run_id} --force"), repeat]
    measure, base = ("measure the adapter in each form that can be served", check_command(training)), None
    with contextlib.suppress(ReportError):  # without a check there is no merge
        base = read_check(training).best_base(training.run.planned[0].trial.base_precision)
    merge = ("merge it into one model folder", f"inv adapter.merge --run={run_id} --base={base}")
    return [measure if base is None else merge, repeat]


def files(training: TrainingReport) -> dict[str, bytes]:
    """Return the files for `inv -f` and `--trial-file` by their names."""
    trial = {TRIAL_FILE: training.run.planned[0].trial.to_text().encode()} if has_trial_file(training) else {}
    return {SETTINGS_FILE: repeat_settings(training), **trial}


def repeat_settings(training: TrainingReport) -> bytes:
    """Return a file for `inv -f`: the run's REPEATED_SECTIONS, profile, number of workers and their working folder.

    A budget in dollars needs the price, too.
    """
    settings, workers = training.run.settings, training.run.planned[0].trial.world_size
    sections = {name: settings[name] for name in REPEATED_SECTIONS if name in settings}
    sections |= {"bench": {"profile": training.run.profile}, "fleet": {"size": workers}}
    if (workspace := settings.get("fleet", {}).get("workspace")) is not None:
        sections["fleet"]["workspace"] = workspace
    if sections.get("train", {}).get("budget_usd") is not None and "cost" in settings:
        sections["cost"] = settings["cost"]
    if sections.get("train", {}).get("workers") is not None:
        sections["train"] = {**sections["train"], "workers": workers}
    return (json.dumps(sections, indent=1, ensure_ascii=False) + "\n").encode()


def has_trial_file(training: TrainingReport) -> bool:
    """Return whether the training had a trial file: its configuration is not that of the settings."""
    trial, settings = training.run.planned[0].trial, training.run.settings.get("train", {})
    default = Trial(**{name: getattr(trial, name) for name in ("name", "reason", "suite", "profile", "model", "data")})
    values = {name: AUTO if name in trial.derive else getattr(trial, name) for name in CONFIGURATION}
    targets = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}.get(settings.get("lora_targets", ""))
    return (
        any(name in settings and settings[name] != value for name, value in values.items())
        or any(getattr(trial, name) != getattr(default, name) for name in FILE_ONLY)
        or targets not in (None, trial.lora_targets)
    )
