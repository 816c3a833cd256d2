"""Commands that resume a training, repeat it, or use its adapter; and the settings file that repeats it."""

import json

from reports.training.summary import TrainingReport

SETTINGS_FILE = "settings.json"
REPEATED_SECTIONS = ("model", "data", "train")  # these settings determine the result


def commands(training: TrainingReport) -> list[tuple[str, str]]:
    """Return pairs of purpose and command, the most useful first."""
    run_id = training.folder.name
    repeat = (
        "repeat it with the same settings",
        f"inv -f {training.folder.parent.name}/{run_id}/report/{SETTINGS_FILE} train",
    )
    if not training.has_succeeded:
        return [("resume from the last checkpoint", f"inv train --resume={run_id}"), repeat]
    if not training.record.evaluations:  # adapter.check needs held-out data
        return [("merge it into one model folder", f"inv adapter.merge --run={run_id} --force"), repeat]
    return [
        ("measure the adapter in each form that can be served", f"inv adapter.check --run={run_id}"),
        ("merge it into one model folder", f"inv adapter.merge --run={run_id}"),
        repeat,
    ]


def repeat_settings(training: TrainingReport) -> bytes:
    """Return a file for `inv -f`: the run's REPEATED_SECTIONS and profile."""
    sections = {name: training.run.settings[name] for name in REPEATED_SECTIONS if name in training.run.settings}
    sections |= {"bench": {"profile": training.run.profile}}
    return (json.dumps(sections, indent=1, ensure_ascii=False) + "\n").encode()
