"""The held-out loss of an adapter in each form that it can be served in, beside the one that was trained.

| form | weights | computed by |
|---|---|---|
| trained | adapter on the base as it was trained on (NF4) | the training's recipe, packed rows |
| bf16 | adapter on the bf16 base | plain transformers and peft |
| merged-bf16 | adapter merged into the bf16 base | plain transformers |
| merged-nf4 | adapter merged into the base as NF4 held it | plain transformers |
| folder | the folder that `merge` wrote | plain transformers, from its files alone |

Each example's loss is compared with that of the first form, pair by pair; plain transformers gets each example by
itself. The first form's loss must also be the one that the training has recorded.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.adapter import generation, lora
from bench.adapter.base_check import check_base
from bench.adapter.merge import shapes_of
from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.data.tokenizer import load_tokenizer
from bench.kernels.loss import token_losses
from bench.machine import fingerprint
from bench.qlora.step import Placement, place
from bench.records import Trial
from bench.records.training import AdapterCheck, ServedForm
from bench.workloads.finetune import evaluate, training_set
from bench.workloads.finetune.steps.group import RankGroup

TRAINED, BF16, MERGED, FOLDER = "trained", "bf16", "merged-{}", "folder"


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What to check. `merged` is the folder of a merge, None before there is one."""

    trial: Trial
    adapter: str
    merged: str | None = None
    model_sha256: str | None = None
    answers: int = 8


class Checker:
    """The forms of one adapter, measured one after the other; one model is in memory at a time."""

    def __init__(self, wish: CheckRequest, say: Callable[[str], None], keep_in: Path | None) -> None:
        """Raises InputError and Refused."""
        self.wish, self.say, self.trial = wish, say, wish.trial
        model, adapter = Path(wish.trial.model), Path(wish.adapter)
        check_base(model, adapter, wish.model_sha256)
        self.model_sha256 = check_model(model).sha256
        shapes = {name: shape for shapes in shapes_of(model).values() for name, shape in shapes.items()}
        self.lora = lora.read(adapter, shapes)
        if wish.merged is not None:
            check_model(Path(wish.merged))
        self.tokenizer = load_tokenizer(model)
        self.material, _ = training_set.load(wish.trial, lambda: self.tokenizer, keep_in)
        self.examples = list(self.material.data.validation)
        if not self.examples:
            raise InputError("train.validation: no data was held out, so no loss can be compared")
        self.targets = [training_set.targets_of([example]) for example in self.examples]
        asks = training_set.training_of(wish.trial).data.labels == "assistant"
        self.asked = generation.questions(self.examples, wish.answers) if asks else []
        self.ends = sorted({self.tokenizer.eos_token_id, *(one.end for one in self.asked)})
        self.modules = torch_stack.load()
        self.placement: Placement = place(self.modules)

    def run(self) -> AdapterCheck:
        """Measure every form. Raises as the stack does."""
        first: list[float] = []
        forms: list[ServedForm] = []
        for name, measured in self._forms():
            start = time.monotonic()
            self.say(f"{name}: measuring {len(self.examples)} held-out examples")
            losses, given = measured()
            torch_stack.free(self.modules.torch, is_cuda=self.placement.is_cuda)
            found = evaluate.evaluation(0, losses, first, self.targets)
            if not math.isfinite(found.loss):
                raise InputError(f"{name}: the held-out loss is {found.loss}; the adapter or the base is damaged")
            first = first or losses
            forms.append(
                ServedForm(
                    name=name, loss=found.loss, low=found.low, high=found.high,
                    change=found.change, change_low=found.change_low, change_high=found.change_high,
                    answers=[text for text, _ in given], unended=sum(not has_ended for _, has_ended in given),
                    seconds=time.monotonic() - start,
                )
            )  # fmt: skip
        return AdapterCheck(
            adapter_sha256=self.lora.sha256,
            model_sha256=self.model_sha256,
            data_sha256=self.material.sha256,
            merged=self.wish.merged,
            end_ids=self.ends,
            places=[one.place for one in self.asked],
            prompts=[self.tokenizer.decode(one.prompt) for one in self.asked],
            forms=forms,
            examples=[example.digest.hex()[:16] for example in self.examples],
            losses=first,
            targets=self.targets,
            device=fingerprint.device_facts(self.modules.torch).get("gpu_name") or "CPU",
            arithmetic=str(self.placement.compute_dtype).removeprefix("torch."),
        )

    def _forms(self) -> Iterator[tuple[str, Callable[[], tuple[list[float], list[generation.Given]]]]]:
        yield TRAINED, self._trained
        yield BF16, self._with_adapter
        for base in ("bf16", "nf4") if self.trial.base_precision == "nf4" else ("bf16",):
            yield MERGED.format(base), partial(self._of_merged, base)
        if self.wish.merged is not None:
            folder = Path(self.wish.merged)
            yield FOLDER, lambda: self._plain(model := self._loaded(folder), evaluate.ends_of(model))

    def _trained(self) -> tuple[list[float], list[generation.Given]]:
        step, peft_model = lora.as_trained(self.modules, self.trial, self.placement, Path(self.wish.adapter))
        rows = training_set.RowRange(self.material, self.tokenizer)
        with evaluate.evaluating(self.modules.torch, step.model):
            losses = evaluate.losses_of(
                self.modules.torch, step, self.material, rows, RankGroup(self.modules.torch), lambda _: None
            )
        with evaluate.evaluating(self.modules.torch, step.model), step.precision():
            return losses, generation.answer(self.modules, peft_model, self.tokenizer, self.asked, self.ends)

    def _with_adapter(self) -> tuple[list[float], list[generation.Given]]:
        model = self._loaded(Path(self.trial.model))
        return self._plain(self.modules.peft.PeftModel.from_pretrained(model, self.wish.adapter), self.ends)

    def _of_merged(self, base: str) -> tuple[list[float], list[generation.Given]]:
        model = self._loaded(Path(self.trial.model))
        merged = lora.MergedWeights(modules=self.modules, lora=self.lora, base=base)
        missing = set(self.lora.pairs)
        with self.modules.torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(merged(name, weight))
                missing.discard(name)
        if missing:
            raise InputError(f"{self.trial.model}: transformers has no weight {min(missing)}; it cannot be merged")
        return self._plain(model, self.ends)

    def _loaded(self, folder: Path) -> Any:
        """The folder's model by plain transformers: its weights as bf16, in the dtype of the products."""
        model = self.modules.transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            device_map={"": self.placement.device},
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            **self.modules.dtype_argument(self.modules.torch.bfloat16),
        )
        return model.to(self.placement.compute_dtype).eval()

    def _plain(self, model: Any, ends: Sequence[int]) -> tuple[list[float], list[generation.Given]]:
        losses = plain_losses(self.modules.torch, model, self.material.data.validation)
        return losses, generation.answer(self.modules, model, self.tokenizer, self.asked, ends)


def plain_losses(torch: Any, model: Any, examples: Sequence[Any]) -> list[float]:
    """Each example's summed loss, one example at a time, from the logits of a transformers model."""
    device, found = next(model.parameters()).device, []
    with torch.no_grad():
        for example in examples:
            ids = torch.tensor(example.ids.tolist(), device=device)
            losses = token_losses(model(input_ids=ids[None]).logits[0, :-1], ids[1:])
            counted = torch.tensor(list(example.targets[1:]), device=device)
            found.append(float((losses.double() * counted).sum()))
    return found
