"""Trials from a JSON file, and a choice of trials by id."""

from __future__ import annotations

from bench.records.trial import Trial, TrialError, parsed


def read_trials(text: str, where: str) -> tuple[Trial, ...]:
    """The trials of a file: one JSON object, or a list of several. `where` names the file. Raises TrialError."""
    document = parsed(text, where)
    listed = document if isinstance(document, list) else [document]
    if not listed:
        raise TrialError(f"{where}: the list is empty; it must hold at least one trial")
    trials = tuple(Trial.from_json(one, f"{where}: trial {number}") for number, one in enumerate(listed, 1))
    seen: set[str] = set()
    for trial in trials:
        if trial.trial_id in seen:
            raise TrialError(f"{where}: two trials are called {trial.trial_id}; give each its own name")
        seen.add(trial.trial_id)
    return trials


def choose(trials: tuple[Trial, ...], ids: tuple[str, ...]) -> tuple[Trial, ...]:
    """The trials with these ids, in the order asked for. Raises TrialError for an unknown or an empty choice."""
    by_id = {trial.trial_id: trial for trial in trials}
    for trial_id in ids:
        if trial_id not in by_id:
            raise TrialError(f"trial {trial_id!r} is unknown; this suite has {', '.join(by_id)}")
    if not ids:
        raise TrialError(f"no trial was chosen; this suite has {', '.join(by_id) or 'none'}")
    return tuple(by_id[trial_id] for trial_id in dict.fromkeys(ids))
