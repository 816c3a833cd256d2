"""The configuration that a benchmark recommends, as the trial of a training."""

from collections.abc import Iterator
from pathlib import Path

from bench.records import Trial
from reports import formatting
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from reports.summary.decisions import Advice
from reports.summary.sentences import not_shown_texts, recommendation
from reports.summary.summarize import summarize
from tasks.errors import UsageError, translate_errors
from tasks.fleet.run_store import is_training
from tasks.fleet.trial_spec import check_trial, with_training_row
from tasks.settings.layers import Settings


def recommended_trial(settings: Settings, folder: Path) -> tuple[Trial | None, list[str]]:
    """Return the trial of a recommended configuration, and lines about it: why, and what is taken over.

    None is for plain `inv train`, where the run did not measure that.

    `folder` is that of a benchmark, whose results are summarized again. Profile tiny measures a part of each length, so
    that its rows are replaced by those of the settings. Raises UsageError.
    """
    source = f"train: --from: {folder.name}"
    if is_training(folder):
        raise UsageError(f"{source}: is a training, not a benchmark", remedy="name a run of `inv bench`")
    with translate_errors(UsageError, ReportError):
        summary = summarize(load(folder))
    row, reasons = summary.best_row, [recommendation(summary)]
    if summary.choice is not None and summary.choice.advice is Advice.UNMEASURED:
        return None, reasons
    if row is None and (withheld := not_shown_texts(summary.quality)):
        raise UsageError(
            f"{source}: withholds every configuration, as none was shown to be at the loss of the reference: "
            f"{formatting.first_n(withheld, 2)}",
            remedy="compare more pairs with a larger quality.pairs and "
            f"`inv bench --quality --resume={folder.name}`, or name another run",
        )
    if row is None or summary.recommended_label is None:
        remedy = f"name another run, or compare configurations with `inv bench --resume={folder.name}`"
        raise UsageError(f"{source}: recommends no configuration", remedy=remedy)
    if row.trial.profile != settings.bench.profile:
        raise UsageError(
            f"{source}: profile {row.trial.profile}, but bench.profile is {settings.bench.profile}",
            remedy="change the setting, or name another run",
        )
    trial = check_trial(settings, with_training_row(settings, row.trial), source)
    return trial, [*reasons, *describe_source(settings, trial, folder.name)]


def describe_source(settings: Settings, trial: Trial, source: str) -> Iterator[str]:
    """Yield what a training takes over from a configuration, and a warning if its rows are shorter than those set."""
    yield (
        f"from {source}: {trial.name}: {trial.recipe}, {trial.base_precision}, rank {trial.lora_rank} on "
        f"{', '.join(trial.lora_targets)}, rows of {trial.micro_batch_size} x {trial.max_seq_len} tokens packed end to "
        f"end{' (of the settings: profile ' + trial.profile + ' measures shorter ones)' if trial.is_scaled else ''}; "
        "data, learning rate, steps and all else come from the settings"
    )
    if trial.max_seq_len < settings.train.max_seq_len:
        yield (
            f"! rows of {trial.max_seq_len} tokens replace train.max_seq_len {settings.train.max_seq_len}: where the "
            "data need longer ones, leave out --from"
        )
