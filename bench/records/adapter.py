"""Results of work on a finished adapter: its check in each form for serving, and the sources of a merge."""

from __future__ import annotations

from dataclasses import dataclass

from bench.records.checksummed import Checksummed
from bench.records.paths import ADAPTER_CHECK_FILE

FORM_LABELS = {  # by ServedForm.name
    "trained": "as trained",
    "bf16": "adapter on the bf16 base",
    "merged-bf16": "merged, --base=bf16",
    "merged-nf4": "merged, --base=nf4",
    "folder": "the merged folder",
}


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """An adapter in one form for serving: its held-out loss per target token with its 95 % interval.

    `change` is the paired difference to the first form of the check over the same examples; None for the first form.
    `unended`: number of answers that reached the length limit. `score` is the mean by `train.score` over the answers,
    without the `unscored` ones; None without that setting, or if no answer has a score.
    """

    name: str
    loss: float
    low: float | None
    high: float | None
    change: float | None
    change_low: float | None
    change_high: float | None
    answers: list[str]
    unended: int
    seconds: float
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    unscored: int = 0


@dataclass(frozen=True, kw_only=True)
class AdapterCheck(Checksummed):
    """Result of `bench.adapter.check` (adapter-check.json).

    `losses` (summed over an example's `targets`) are those of the first form, for the example digests in `examples`;
    `places` and `prompts` identify the answered questions. `score` is the method of the forms' scores, `unscored_place`
    the first answer without a score, with the cause.
    """

    FILE, KIND = ADAPTER_CHECK_FILE, "adapter check"

    adapter_sha256: str
    model_sha256: str
    data_sha256: str
    merged: str | None
    end_ids: list[int]
    places: list[str]
    prompts: list[str]
    forms: list[ServedForm]
    examples: list[str]
    losses: list[float]
    targets: list[int]
    device: str
    arithmetic: str
    score: str | None = None
    unscored_place: str | None = None


@dataclass(frozen=True, kw_only=True)
class MergeFacts:
    """Sources of a merged model (merge.json in its folder). `base`: bf16, or nf4 for the base used in training."""

    base: str
    model_sha256: str
    adapter_sha256: str
    end_ids: list[int]
    shards: int
    bytes: int
