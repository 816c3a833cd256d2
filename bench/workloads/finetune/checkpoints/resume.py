"""Which checkpoint a training goes on from: the newest that is whole and was made with the same settings.

Standard library alone. A broken checkpoint is named, and the one before it is taken. Where checkpoints were there and
none of them is whole, the training is refused: beginning anew would throw away what somebody may still want to save.
One that is whole but was made with other data, another model or other settings is refused field by field, but for the
fields that somebody asked to change (`Training.may_differ`).
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from bench.data.inputs import InputError, InputRejected
from bench.records import Trial, schema
from bench.records.atomic_files import write_atomic
from bench.records.training import Restart
from bench.workloads.finetune.checkpoints import checkpoint
from bench.workloads.finetune.checkpoints.checkpoint import BrokenCheckpoint, History, Manifest, State

# What may change between two attempts: it decides neither what a step computes nor which adapter comes home.
FREE = {
    *("name", "reason", "suite", "profile", "model", "data", "world_size", "deadline_sec", "data_workers"),
    *("layout", "warmup_steps", "measured_steps", "new_tokens", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers"),
    *("training.data", "training.checkpoint_sec", "training.keep_checkpoints", "training.max_hours"),
    *("training.limited_by", "training.prompts", "training.answer_tokens", "training.may_differ"),
}
# But not in the recipe `fast`: a layer that is recomputed begins from its input in bf16, so its gradients differ.
RECOMPUTED = {"gradient_checkpointing", "checkpoint_every"}
JOURNAL, RESTARTS = "journal.jsonl", "restarts.json"
NO_STEP = "ended before its first step"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a training is: digests of model, data and code, and its settings. `may_differ`: see `Training`."""

    model: str
    data: str
    code: str
    settings: dict[str, Any]
    may_differ: tuple[str, ...] = ()

    @classmethod
    def of(cls, trial: Trial, model: str, data: str) -> "Identity":
        may_differ = () if trial.training is None else trial.training.may_differ
        return cls(model=model, data=data, code=code_digest(), settings=settings_of(trial), may_differ=may_differ)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """A checkpoint to go on from. `changed` is what it was made with and is another now, as somebody asked."""

    path: Path
    manifest: Manifest
    state: State
    history: History
    changed: list[str]


def settings_of(trial: Trial) -> dict[str, Any]:
    """The settings that must not change, flat: `lora_rank`, `training.schedule`, ..."""
    document = trial.to_json()
    flat = {**document, **{f"training.{key}": value for key, value in document.pop("training").items()}}
    flat.pop("training", None)
    free = FREE - RECOMPUTED if trial.recipe == "fast" else FREE
    return {key: value for key, value in flat.items() if key not in free}


def code_digest() -> str:
    """The sha256 of the bench's own sources."""
    digest = hashlib.sha256()
    root = Path(bench.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find(checkpoints: Path, now: Identity, say: Callable[[str], None]) -> ResumePoint | None:
    """The checkpoint to go on from; None where there has been none. Raises Refused and InputError."""
    broken: list[str] = []
    others: list[str] = []
    for path in checkpoint.listed(checkpoints):
        try:
            manifest = checkpoint.verified(path)
            state = schema.from_json(State, json.loads((path / checkpoint.STATE).read_bytes()), str(path))
            history = History((path / checkpoint.STEPS).read_bytes(), state.step)
        except (BrokenCheckpoint, ValueError, OSError) as error:
            broken.append(str(error))
            say(f"not whole, left out: {error}")
            continue
        changed = differences(manifest, now)
        if refused := [words for name, words in changed.items() if name not in now.may_differ]:
            others.append(f"{path}: made with {'; '.join(refused)}")
            continue
        for other in others:
            say(f"left out: {other}")
        if manifest.code != now.code:
            say(f"{path}: written by another version of this program: what it goes on to may differ in its last bits")
        if changed:
            say(f"{path}: made with {'; '.join(changed.values())}; it goes on, as somebody asked")
        if changed.keys() & {"model", "data"}:  # losses of other examples, or of another model, are no measure
            state = dataclasses.replace(state, evaluations=[], first_losses=[], best_step=None)
        return ResumePoint(path=path, manifest=manifest, state=state, history=history, changed=list(changed.values()))
    if others:
        raise InputError(f"{others[0]}; put that back, or name another folder for checkpoints")
    if broken:
        raise InputRejected(
            f"{checkpoints}: none of its {len(broken)} checkpoints is whole ({broken[0]}); bring one back, or remove "
            "the folder to begin anew"
        )
    return None


def differences(manifest: Manifest, now: Identity) -> dict[str, str]:
    """What a checkpoint was made with and is different now: fields, each in words."""
    found = {}
    for name, before, after in (("model", manifest.model, now.model), ("data", manifest.data, now.data)):
        if before != after:
            found[name] = f"another {name} (sha256 {before[:12]}, now {after[:12]})"
    older = RECOMPUTED - manifest.settings.keys()  # written before these were compared
    for key in sorted((manifest.settings.keys() | now.settings.keys()) - older):
        was, is_now = manifest.settings.get(key), now.settings.get(key)
        if was != is_now:
            found[key] = f"{key} {_word(was)}, now {_word(is_now)}"
    return found


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Journal:
    """A line for each step and each attempt's end, so that the next attempt can say what was lost. Not synced: a line
    less is no harm."""

    def __init__(self, checkpoints: Path) -> None:
        self._path = checkpoints / JOURNAL

    def note(self, **line: Any) -> None:
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def begin_again(self) -> list[dict[str, Any]]:
        """The last attempt's lines; then none."""
        lines = []
        with contextlib.suppress(OSError):
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
            self._path.unlink()
        return [line for line in lines if isinstance(line, dict)]


def restarted(checkpoints: Path, attempt: int, from_step: int, changed: Sequence[str] = ()) -> list[Restart]:
    """All restarts of this training, this attempt's among them; kept on the disk.

    Every attempt but the first is one, also after an attempt that was killed before it could note anything. Attempts
    typed by hand may all have number 1: what the last one noted says that there was one.
    """
    path, before = checkpoints / RESTARTS, []
    with contextlib.suppress(OSError, ValueError, TypeError):
        before = [schema.from_json(Restart, load) for load in json.loads(path.read_bytes())]
    lines = Journal(checkpoints).begin_again()
    lost = {line["step"]: float(line["sec"]) for line in lines if line.get("step", 0) > from_step}
    ends = [str(line["end"]) for line in lines if "end" in line]
    reason = ends[-1] if ends else "ended without a word" if lines else NO_STEP
    first = 1 + max((one.attempt for one in before), default=1)
    last = Restart(
        attempt=attempt, from_step=from_step, reason=NO_STEP, lost_steps=0, lost_sec=0.0, changed=list(changed)
    )
    added = [
        *(dataclasses.replace(last, attempt=number, changed=[]) for number in range(first, attempt)),
        *([last] if lines or attempt >= first else []),
    ]
    if added:
        # What was noted belongs to the attempt before the first of these; later ones noted nothing.
        added[0] = dataclasses.replace(added[0], reason=reason, lost_steps=len(lost), lost_sec=sum(lost.values()))
        before += added
        with contextlib.suppress(OSError):
            write_atomic(path, json.dumps(schema.to_json(before)).encode())
    return before


def require_room(checkpoints: Path, needed: int) -> None:
    """Raises InputError where a checkpoint could not be written."""
    stat = os.statvfs(checkpoints)
    free = stat.f_bavail * stat.f_frsize
    if free < needed:
        raise InputError(
            f"{checkpoints}: {free / 2**20:,.0f} MiB free, and checkpoints need {needed / 2**20:,.0f}; "
            "free some, or name a folder on another disk"
        )
