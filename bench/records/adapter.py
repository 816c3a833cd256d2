"""An adapter's config, how the training held its base, and results of work on it: its check in each form, its merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.checksummed import Checksummed, ResultError
from bench.records.paths import ADAPTER_CHECK_FILE, BASE_FILE

MAX_CONFIG_BYTES = 1 << 20
NF4 = "nf4"  # kind of a quantized tensor
# Keys of peft's LoraConfig (0.21) that are understood. Those of FREE_KEYS may have any value: it is read, checked with
# the tensors, or changes nothing in a trained adapter.
FREE_KEYS = frozenset(
    {
        *("r", "lora_alpha", "target_modules", "exclude_modules", "lora_dropout", "inference_mode"),
        *("base_model_name_or_path", "revision", "auto_mapping", "peft_version"),
        *("eva_config", "megatron_core", "qalora_group_size"),
    }
)
# What the others may be, apart from absent or empty. The factors of other initializations belong to a changed base.
PLAIN_VALUES = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),
}

BASES = ("bf16", "nf4")  # into which an adapter can be merged
MIN_NATS = 0.002  # a smaller change of the loss is not reported
MAX_HIDDEN_NATS = 0.02  # a change of 2 % of the perplexity; a check that could miss more says so
FORM_LABELS = {  # by ServedForm.name
    "trained": "as trained",
    "bf16": "adapter on the bf16 base",
    "merged-bf16": "merged, --base=bf16",
    "merged-nf4": "merged, --base=nf4",
    "folder": "the merged folder",
}


def read_lora_config(path: Path) -> dict[str, Any]:
    """Read the adapter_config.json of plain LoRA. Raises ResultError for any key that is not understood."""
    try:
        config = schema.parse_object(read_regular(path, max_bytes=MAX_CONFIG_BYTES))
    except OSError as error:
        raise ResultError(
            f"{path}: cannot be read: {error.strerror}", remedy="name a folder that peft saved"
        ) from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON: {error}", remedy="copy the adapter again") from error
    for key, value in {"peft_type": "missing", **config}.items():
        is_unset = key != "peft_type" and (value is None or value is False or value in ("", [], {}))  # 0 is a layer
        if key not in FREE_KEYS and not is_unset and value not in PLAIN_VALUES.get(key, ()):
            raise ResultError(
                f"{path}: {key} is {str(value)[:40]}, not plain LoRA",
                remedy="convert it to plain LoRA with peft, or use another adapter",
            )
    for key in ("r", "lora_alpha"):
        if type(config.get(key)) not in (int, float) or not 0 < config[key] < 1 << 20:
            raise ResultError(
                f"{path}: {key}: expected a number above 0, found {str(config.get(key))[:40]!r}",
                remedy="copy the adapter again",
            )
    return config


@dataclass(frozen=True, kw_only=True)
class HeldTensor:
    """A tensor of a loaded model: `kind` is NF4 or a dtype such as "bfloat16"; `shape` is that before quantization.

    `is_transposed`: NF4 quantized its transpose, as of the weights of GPT-2's layers.
    """

    kind: str
    shape: list[int]
    is_transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class BaseRecord(Checksummed):
    """The base as a training held it (base.json in the adapter's folder), read from the loaded model.

    `tensors` are its parameters and saved buffers, and `adapters` the modules with an adapter, by transformers' names.
    """

    FILE, KIND = BASE_FILE, "base"

    tensors: dict[str, HeldTensor]
    adapters: list[str]

    @cached_property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each module with a matrix in NF4, by its name."""
        return {
            name.removesuffix(".weight"): (first, last) if held.is_transposed else (last, first)
            for name, held in self.tensors.items()
            if held.kind == NF4 and len(held.shape) == 2
            for first, last in [held.shape]
        }

    @cached_property
    def experts(self) -> dict[str, list[list[int]]]:
        """Shapes of the parameters in NF4 that hold a module's experts, by its name."""
        experts: dict[str, list[list[int]]] = {}
        for name, held in self.tensors.items():
            if held.kind == NF4 and len(held.shape) == 3:
                experts.setdefault(name.rpartition(".")[0], []).append(held.shape)
        return experts

    @cached_property
    def others(self) -> int:
        """The number of weights that are not in NF4."""
        return sum(math.prod(held.shape) for held in self.tensors.values() if held.kind != NF4)


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """An adapter in one form for serving: its held-out loss per target token with its 95 % interval.

    `change` is the paired difference to the first form of the check over the same examples; None for the first form.
    `unended`: number of answers that reached the length limit.
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

    def has_other_loss(self, minimum: float = MIN_NATS) -> bool:
        """Tell whether the loss differs from the trained one, beyond the interval of their difference."""
        if self.change is None or abs(self.change) < minimum:
            return False
        return self.change_low is None or self.change_high is None or self.change_low > 0 or self.change_high < 0

    def is_another_model(self, base: object, trained_base: str) -> bool:
        """Tell whether a merge into this base has another loss than was trained, beyond its rounding."""
        return self.has_other_loss(MAX_HIDDEN_NATS if base == trained_base else MIN_NATS)


@dataclass(frozen=True, kw_only=True)
class AdapterCheck(Checksummed):
    """Result of `bench.adapter.check` (adapter-check.json).

    `losses` (summed over an example's `targets`) are those of the first form, for the example digests in `examples`;
    `prompts` were answered; `questions` are the texts of those that are a single question.
    """

    FILE, KIND = ADAPTER_CHECK_FILE, "adapter check"

    adapter_sha256: str
    merged: str | None
    end_ids: list[int]
    prompts: list[str]
    questions: list[str | None]
    forms: list[ServedForm]
    examples: list[str]
    losses: list[float]
    targets: list[int]
    device: str
    arithmetic: str

    def merged_form(self, base: object) -> ServedForm | None:
        return next((form for form in self.forms if form.name == f"merged-{base}"), None)

    def best_base(self, trained_base: str) -> str | None:
        """Return the base with the lowest loss of those into which a merge stays the trained model; None if none is."""
        forms = {base: form for base in BASES if (form := self.merged_form(base)) is not None}
        same = {
            base: form.loss
            for base, form in forms.items()
            if not form.is_another_model(base, trained_base) and form.unended <= self.forms[0].unended
        }
        return min(same, key=lambda base: same[base], default=None)


@dataclass(frozen=True, kw_only=True)
class MergeFacts:
    """Sources of a merged model (merge.json in its folder). `base`: bf16, or nf4 for the base used in training."""

    base: str
    model_sha256: str
    adapter_sha256: str
    end_ids: list[int]
    shards: int
    bytes: int
