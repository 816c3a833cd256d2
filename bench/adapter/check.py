"""Held-out loss of an adapter in each form in which it can be served, compared with the trained form.

| form | weights | computed by |
|---|---|---|
| trained | adapter on the base as it was trained on (NF4) | the training's recipe, packed rows |
| bf16 | adapter on the bf16 base | plain transformers and peft |
| merged-bf16 | adapter merged into the bf16 base | plain transformers |
| merged-nf4 | adapter merged into the base as NF4 held it | plain transformers |
| folder | the folder that `merge` wrote | plain transformers, only from its files |

Each example's loss is compared with that of the first form, pair by pair. Plain transformers computes one example at a
time. The first form's loss must also equal the one that the training recorded.

`answer_questions` answers with the adapter as it was trained, greedily.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.adapter import lora
from bench.data.inputs import InputError
from bench.data.masking import encode_prompt
from bench.data.model_folder import check_model
from bench.data.tokenizer import load_trial_tokenizer
from bench.kernels.loss import token_losses
from bench.machine import fingerprint
from bench.qlora.base_models import load_text_model, read_base, widen
from bench.qlora.step import Placement, TrainingStep, choose_placement
from bench.records import Trial
from bench.records.adapter import AdapterCheck, ServedForm
from bench.records.units import format_gb
from bench.workloads.finetune import evaluate, training_set
from bench.workloads.finetune.answers import AnswerGenerator, GeneratedAnswer, end_tokens_of, prompt_cases
from bench.workloads.finetune.scoring import RowTexts
from bench.workloads.finetune.training_set import training_of
from bench.workloads.ranks.process import RankGroup

TRAINED, BF16, MERGED, FOLDER = "trained", "bf16", "merged-{}", "folder"


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """Request to check an adapter. `merged` is the folder of a merge, None before the first."""

    trial: Trial
    adapter: str
    merged: str | None = None
    model_sha256: str | None = None
    answers: int = 8


class Checker:
    """Measurement of all forms of one adapter, one model in memory at a time."""

    def __init__(self, request: CheckRequest, log: Callable[[str], None], cache_dir: Path | None) -> None:
        """Load and check the inputs. Raises InputError and InputRejected."""
        self.request, self.trial = request, request.trial
        self.log = log
        self.log(f"checking the files of {request.trial.model}")
        model, adapter = Path(request.trial.model), Path(request.adapter)
        facts = lora.check_base(model, adapter, request.model_sha256)
        self.lora, self.record = lora.read(adapter)
        if request.merged is not None:
            check_model(Path(request.merged))
        self.tokenizer = load_trial_tokenizer(request.trial)
        self.material = training_set.load(request.trial, cache_dir)
        self.examples = list(self.material.data.validation)
        if not self.examples:
            raise InputError("train.validation_fraction: no data was held out, so no loss can be compared")
        self.targets = [training_set.count_targets([example]) for example in self.examples]
        training = training_of(request.trial)
        self.cases = prompt_cases(self.examples, request.answers) if training.data.labels == "assistant" else []
        self.texts = RowTexts(self.tokenizer, training.data.special_tokens)
        self.ends = sorted({self.tokenizer.eos_token_id, *self.material.end_tokens})
        self.modules = torch_stack.load()
        self.placement: Placement = choose_placement(self.modules)
        needed, memory = 2 * facts.parameters, device_memory(self.modules.torch, self.placement)
        if memory is not None and needed > memory:
            raise InputError(
                f"{model}: {format_gb(needed)} in 16 bits, in which it is served, and the GPU has {format_gb(memory)}",
                remedy="check it on a worker with more memory; `inv adapter.merge` needs less",
            )

    def run(self) -> AdapterCheck:
        """Measure every form. Raises InputError and any error of the torch stack."""
        first: list[float] = []
        forms: list[ServedForm] = []
        for name, measure in self._forms():
            counts = f"{len(self.examples)} held-out examples, {len(self.cases)} answers"
            self.log(f"{name}: loading the model, then measuring {counts}")
            losses, answers = measure()
            torch_stack.free_memory(self.modules.torch, is_cuda=self.placement.is_cuda)
            result = evaluate.make_evaluation(0, losses, first, self.targets)
            if not math.isfinite(result.loss):
                raise InputError(
                    f"{name}: held-out loss {result.loss}, so adapter or base is damaged", remedy="fetch them again"
                )
            first = first or losses
            forms.append(
                ServedForm(
                    name=name, loss=result.loss, low=result.low, high=result.high,
                    change=result.change, change_low=result.change_low, change_high=result.change_high,
                    answers=[text for text, _ in answers], unended=sum(not has_ended for _, has_ended in answers),
                )
            )  # fmt: skip
        return AdapterCheck(
            adapter_sha256=self.lora.sha256,
            merged=self.request.merged,
            end_ids=self.ends,
            prompts=[self.tokenizer.decode(case.prompt) for case in self.cases],
            questions=self.texts.questions(self.cases),
            forms=forms,
            examples=[example.digest.hex()[:16] for example in self.examples],
            losses=first,
            targets=self.targets,
            device=fingerprint.device_facts(self.modules.torch).get("gpu_name") or "CPU",
            arithmetic=str(self.placement.compute_dtype).removeprefix("torch."),
        )

    def _forms(self) -> Iterator[tuple[str, Callable[[], tuple[list[float], list[GeneratedAnswer]]]]]:
        yield TRAINED, self._measure_trained
        yield BF16, self._measure_bf16
        for base in ("bf16", "nf4") if self.trial.base_precision == "nf4" else ("bf16",):
            yield MERGED.format(base), partial(self._measure_merged, base)
        if self.request.merged is not None:
            folder = Path(self.request.merged)
            yield FOLDER, lambda: self._measure_plain(model := self._load_plain(folder), end_tokens_of(model))

    def _measure_trained(self) -> tuple[list[float], list[GeneratedAnswer]]:
        step, peft_model = lora.load_trained(self.modules, self.trial, self.placement, Path(self.request.adapter))
        rows, torch = training_set.RowCollator(self.material, self.tokenizer), self.modules.torch
        losses = evaluate.example_losses(torch, step, self.material, rows, RankGroup(torch), lambda _: None)
        return losses, self._generate_answers(peft_model, self.ends, step)

    def _measure_bf16(self) -> tuple[list[float], list[GeneratedAnswer]]:
        model = self._load_plain(Path(self.trial.model))
        return self._measure_plain(self.modules.peft.PeftModel.from_pretrained(model, self.request.adapter), self.ends)

    def _measure_merged(self, base: str) -> tuple[list[float], list[GeneratedAnswer]]:
        model = self._load_plain(Path(self.trial.model))
        merged = lora.MergedWeights(modules=self.modules, record=self.record, lora=self.lora, base=base)
        if read_base(model).tensors.keys() != self.record.tensors.keys():
            raise InputError(f"{self.trial.model}: transformers has other weights than in the training")
        with self.modules.torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(merged(name, weight))
        return self._measure_plain(model, self.ends)

    def _load_plain(self, folder: Path) -> Any:
        """Load the folder's model with plain transformers: what is in bf16 is cast to the compute dtype."""
        options = self.modules.dtype_argument(self.modules.torch.bfloat16)
        model = load_text_model(self.modules, str(folder), device_map={"": self.placement.device}, **options)
        widen(self.modules.torch, model, self.placement.compute_dtype)
        return model.eval()

    def _measure_plain(self, model: Any, ends: Sequence[int]) -> tuple[list[float], list[GeneratedAnswer]]:
        losses = plain_losses(self.modules.torch, model, self.material.data.validation)
        return losses, self._generate_answers(model, ends)

    def _generate_answers(
        self, model: Any, ends: Sequence[int], step: TrainingStep | None = None
    ) -> list[GeneratedAnswer]:
        generator = AnswerGenerator(self.modules, model, self.tokenizer, ends, step=step)
        return generator.generate([case.prompt for case in self.cases], [case.max_tokens for case in self.cases])


def device_memory(torch: Any, placement: Placement) -> int | None:
    """Return the bytes of the GPU's memory; None without a GPU."""
    return int(torch.cuda.mem_get_info(placement.device)[1]) if placement.is_cuda else None


def plain_losses(torch: Any, model: Any, examples: Iterable[Any]) -> list[float]:
    """Compute each example's summed loss, one example at a time, from the logits of a transformers model."""
    device, example_losses = next(model.parameters()).device, []
    with torch.no_grad():
        for example in examples:
            ids = torch.tensor(example.ids.tolist(), device=device)
            losses = token_losses(model(input_ids=ids[None]).logits[0, :-1], ids[1:])
            counted = torch.tensor(list(example.targets[1:]), device=device)
            example_losses.append(float((losses.double() * counted).sum()))
    return example_losses


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """Request to answer questions with at most `most` tokens each. `end_ids` end an answer, as the model's own do."""

    trial: Trial
    adapter: str
    model_sha256: str | None
    questions: list[str]
    most: int
    end_ids: list[int]


def answer_questions(request: ChatRequest, log: Callable[[str], None]) -> dict[str, int]:
    """Answer the questions in order and log each answer at once. Return how many reached the limit.

    Raises InputError and InputRejected.
    """
    model, adapter = Path(request.trial.model), Path(request.adapter)
    positions = lora.check_base(model, adapter, request.model_sha256).max_position_embeddings
    modules, tokenizer = torch_stack.load(), load_trial_tokenizer(request.trial)
    step, peft_model = lora.load_trained(modules, request.trial, choose_placement(modules), adapter)
    generator = AnswerGenerator.of_step(modules, step, peft_model, tokenizer, request.end_ids)
    data = training_of(request.trial).data
    system = [] if data.system is None else [{"role": "system", "content": data.system}]
    unended = 0
    for question in request.questions:
        messages = [*system, {"role": "user", "content": question}]
        prompt = encode_prompt(tokenizer, "chat", messages, data.special_tokens, lambda message: log(f"[{message}]"))
        most = min(request.most, positions - len(prompt))
        if most < 1:
            raise InputError(f"chat: {len(prompt):,} tokens: the model takes {positions:,}", remedy="ask less")
        ((text, has_ended),) = generator.generate([prompt], [most])
        unended += not has_ended
        log(text if has_ended else f"{text} [not ended after {most} tokens]")
    return {"unended": unended}
