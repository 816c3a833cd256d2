"""The inference trial: greedy answers by transformers' `generate`, for doubling batch sizes.

Arithmetic limits the prompt, which multiplies matrices by matrices. Memory bandwidth limits the answer, which reads
every weight once per token, shared by the batch. Therefore they are measured separately: up to the first token
(`prefill`), and from there to the last (`decode`).

Prompts are packed text without padding, and all answers have the same length, so every batch does the same work.
`decode_tokens_per_sec` counts all sequences together.

The base is measured first (path `base`), then with unmerged LoRA adapters of the trial's rank on the trial's layers
(path `adapter`): the cost of an answer with a fine-tuned model.
"""

from dataclasses import dataclass
from typing import Any

from bench.data import collate
from bench.data.inputs import Conversation, InputError, Inputs
from bench.data.tokenizer import load_trial_tokenizer
from bench.harness import termination
from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.qlora.step import TorchSession, add_lora, load_base, open_session
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.torch_stack import DeviceClock, Stack, free_memory

BASE, ADAPTER = "base", "adapter"  # paths


# By profile, the largest batch and answer, and the repeats of a measurement.
LIMITS = {"gpu": (32, 65_536, 5), "tiny": (4, 8, 3)}


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Measure each batch; a path that runs out of memory ends there, the other continues. Raises InputError."""
    trial, (max_batch, max_new_tokens, repeats) = record.trial, LIMITS[record.trial.profile]
    model_facts, _, conversations = inputs
    new_tokens = min(trial.new_tokens, max_new_tokens)
    check_length(trial, new_tokens, model_facts.max_position_embeddings)
    batches = batch_sizes(min(trial.micro_batch_size, max_batch))
    session = open_session(record, stops)
    record.steps_planned = 2 * (len(batches) * 5 + 1)  # on each path five figures a batch, and the largest batch
    with record.timed("data"):
        prompts = make_prompts(session, trial, conversations, batches[-1])
    with record.timed("load"):
        model = load_base(session.modules, trial, session.placement)
        prepare_model(session.modules, model)
    record.log(
        f"batches {batches} of {trial.max_seq_len} prompt tokens, {new_tokens} new tokens, {trial.base_precision}"
    )
    bench = Generation(record=record, session=session, model=model, new_tokens=new_tokens, repeats=repeats)
    try:
        with record.timed("measure"):
            fitted = {BASE: bench.measure_path(BASE, prompts, batches, stops)}
            add_adapters(session, trial, model)
            fitted[ADAPTER] = bench.measure_path(ADAPTER, prompts, batches, stops)
    finally:
        if session.placement.is_cuda:
            record.peak_vram_bytes = session.modules.torch.cuda.max_memory_allocated()
    for path, largest in fitted.items():
        record.add("largest_batch_sequences", largest, path=path, **bench.context())


def batch_sizes(largest: int) -> list[int]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    doubling = [1 << power for power in range(largest.bit_length())]
    return doubling if doubling[-1] == largest else [*doubling, largest]


def check_length(trial: Trial, new_tokens: int, positions: int) -> None:
    """Raise InputError if prompt and answer together exceed the model's positions."""
    if trial.max_seq_len + new_tokens > positions:
        raise InputError(
            f"new_tokens: {new_tokens} after a prompt of {trial.max_seq_len} (max_seq_len) exceed the {positions} "
            f"positions of {trial.model}",
            remedy="reduce one of them",
        )


def prepare_model(stack: Stack, model: Any) -> None:
    """Configure a base model for greedy generation with its cache, up to the maximum number of tokens."""
    model.eval()
    model.config.use_cache = True
    # Without an end-of-sequence token nothing stops early; min_new_tokens would change logits.
    model.generation_config = stack.transformers.GenerationConfig(
        do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
    )


def make_prompts(session: TorchSession, trial: Trial, conversations: list[Conversation], count: int) -> Any:
    """Make `count` prompts of `max_seq_len` tokens each, without padding: int64 on the device. Raises InputError."""
    ids = collate.make_prompts(trial, conversations, load_trial_tokenizer(trial), count)
    return session.modules.torch.tensor(ids, dtype=session.modules.torch.int64, device=session.placement.device)


def time_answers(session: TorchSession, model: Any, prompts: Any, new_tokens: int) -> tuple[float, float]:
    """Generate `new_tokens` for each of `prompts`, int64 of shape (batch, prompt tokens) on the device.

    Returns the seconds to the first token, and from it to the last.
    """
    torch, transformers = session.modules.torch, session.modules.transformers
    clock = DeviceClock(torch, is_cuda=session.placement.is_cuda)
    never_stop = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    clock.synchronize()
    stamps = [clock.stamp()]

    def on_token(_ids: Any, _scores: Any, **_more: Any) -> Any:
        stamps.append(clock.stamp())
        return never_stop

    ids = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        stopping_criteria=transformers.StoppingCriteriaList([on_token]),
        **session.modules.cache_arguments(model, prompts.shape[1] + new_tokens),
    )
    seconds = [clock.seconds(stamps[0], stamp) for stamp in stamps]
    count = ids.shape[1] - prompts.shape[1]
    if count != new_tokens or len(seconds) != new_tokens + 1:
        raise RuntimeError(f"generate returned {count} tokens in {len(seconds) - 1} steps")
    return seconds[1], seconds[-1] - seconds[1]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The measurements of one loaded model."""

    record: Record
    session: TorchSession
    model: Any
    new_tokens: int
    repeats: int

    def context(self) -> dict[str, Any]:
        trial = self.record.trial
        return {
            "precision": trial.base_precision,
            "prompt_tokens": trial.max_seq_len,
            "new_tokens": self.new_tokens,
        }

    def measure_path(self, path: str, prompts: Any, batches: list[int], stops: StopSignals) -> int:
        """Measure batches until one does not fit in memory; return the largest that fitted, 0 if none did."""
        fitted = 0
        for batch in batches:
            context = {"batch": batch, "path": path, **self.context()}
            note = self._measure_batch(prompts[:batch], context, stops)
            free_memory(self.session.modules.torch, is_cuda=self.session.placement.is_cuda)
            if note is not None:
                self.record.add("decode_tokens_per_sec", None, note=note, **context)
                break
            fitted = batch
        return fitted

    def _measure_batch(self, prompts: Any, context: dict[str, Any], stops: StopSignals) -> str | None:
        """Measure one batch; return the reason if memory ran out."""
        cuda = self.session.modules.torch.cuda if self.session.placement.is_cuda else None
        if cuda is not None:
            cuda.reset_peak_memory_stats()
        answers: list[tuple[float, float]] = []
        try:
            time_answers(self.session, self.model, prompts, self.new_tokens)  # warm-up
            for _ in range(self.repeats):
                stops.check()
                answers.append(time_answers(self.session, self.model, prompts, self.new_tokens))
        except Exception as error:
            if not termination.is_out_of_memory(error):
                raise
            return f"out of memory: {' '.join(str(error).split())[:200]}"
        self._add_measurements(answers, len(prompts), context)
        peak = None if cuda is None else cuda.max_memory_allocated()
        note = "no CUDA device" if cuda is None else "peak of all allocations, including the model"
        self.record.add("peak_memory_bytes", peak, note=note, **context)
        return None

    def _add_measurements(self, answers: list[tuple[float, float]], batch: int, context: dict[str, Any]) -> None:
        prompt_tokens, later = batch * self.record.trial.max_seq_len, self.new_tokens - 1
        values = {
            "time_to_first_token_sec": [first for first, _ in answers],
            "prefill_tokens_per_sec": [prompt_tokens / first for first, _ in answers],
        }
        if later:  # the first token is the prefill's
            values["decode_time_per_token_sec"] = [decode / later for _, decode in answers]
            values["decode_tokens_per_sec"] = [batch * later / decode for _, decode in answers]
        for name, repeated in values.items():
            self.record.add(name, summarize(repeated), **context)


def add_adapters(session: TorchSession, trial: Trial, model: Any) -> None:
    """Add new adapters to `model` in place, in its precision; their B is random, as after training, not 0."""
    torch = session.modules.torch
    adapted = add_lora(session.modules, trial, model)
    adapted.eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.to(model.dtype)
                if "lora_B" in name:
                    parameter.normal_(std=1e-3)
