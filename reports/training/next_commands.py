"""The commands that go on with a training, repeat it, or use what it made; and the settings that repeat it."""

import json

from reports.training.summary import TrainingReport

SETTINGS_FILE = "settings.json"
REPEATED = ("model", "data", "train")  # sections that decide what is trained


def commands(told: TrainingReport) -> list[tuple[str, str]]:
    """What to type for what, in the order in which it is useful."""
    run_id = told.folder.name
    repeat = (
        "repeat it with the same settings",
        f"inv -f {told.folder.parent.name}/{run_id}/report/{SETTINGS_FILE} train",
    )
    if not told.has_succeeded:
        return [("go on from its last checkpoint", f"inv train --resume={run_id}"), repeat]
    if not told.record.evaluations:  # without held-out data no check can be made
        return [("merge it into one model folder", f"inv adapter.merge --run={run_id} --anyway"), repeat]
    return [
        ("measure the adapter in each form that can be served", f"inv adapter.check --run={run_id}"),
        ("merge it into one model folder", f"inv adapter.merge --run={run_id}"),
        repeat,
    ]


def settings(told: TrainingReport) -> bytes:
    """A file for `inv -f`: the sections of the run that decide what is trained, and its profile."""
    kept = {name: told.run.settings[name] for name in REPEATED if name in told.run.settings}
    kept |= {"bench": {"profile": told.run.profile}}
    return (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode()
