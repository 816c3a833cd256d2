"""The inference trial: greedy answers to prompts, for doubling batch sizes, on two paths.

Arithmetic limits the prompt, which multiplies matrices by matrices. Memory bandwidth limits the answer, which reads
every weight once per token, shared by the batch. Therefore they are measured separately: up to the first token
(`prefill`), and from there to the last (`decode`).

Prompts are packed text without padding, and all answers have the same length, so both paths do the same work.
`decode_tokens_per_sec` counts all sequences together. `decode_read_gb_per_sec` is the bytes of weights that a step must
read, divided by the step's time; its limit is the chip's memory bandwidth.

On a GPU the fast path is measured again as path `adapter`, with unmerged LoRA adapters of the trial's rank on the
trial's layers: the cost of an answer with a fine-tuned model.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.architectures import find
from bench.data.collate import make_rows
from bench.data.inputs import Conversation, InputError, Inputs
from bench.data.tokenizer import load_trial_tokenizer
from bench.harness import termination
from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.machine import gpu_specs
from bench.qlora.step import TorchSession, add_lora, load_base, open_session
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.torch_stack import free_memory
from bench.workloads import RECORDED_STEPS, ProfiledSteps
from bench.workloads.decoding import DefaultPath, FastPath, Generated, prepare_model

DecodingPath: TypeAlias = DefaultPath | FastPath
PATHS = (DefaultPath.name, FastPath.name)
ADAPTER = "adapter"
PROFILED_ANSWERS = 5
AGREEMENT = "two greedy answers differ from the first token that depends on rounding"
NO_GPU = "no CUDA device: no graph of kernels to capture"


@dataclass(frozen=True, kw_only=True)
class InferenceLimits:
    """Upper limits of a profile, applied to the trial's settings."""

    max_batch: int
    max_new_tokens: int
    repeats: int


LIMITS = {
    "gpu": InferenceLimits(max_batch=32, max_new_tokens=65_536, repeats=5),
    "tiny": InferenceLimits(max_batch=4, max_new_tokens=8, repeats=3),
}


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Measure each batch; a path that runs out of memory ends there, the others continue. Raises InputError."""
    trial, sizes = record.trial, LIMITS[record.trial.profile]
    model_facts, _, conversations = inputs
    new_tokens = min(trial.new_tokens, sizes.max_new_tokens)
    check_length(trial, new_tokens, model_facts.max_position_embeddings)
    batches = batch_sizes(min(trial.micro_batch_size, sizes.max_batch))
    session = open_session(record, stops)
    # Six figures per path and the agreement of two; without a GPU six figures of one path and a note for the others.
    record.steps_planned = len(batches) * 19 + 3 if session.placement.is_cuda else len(batches) * 8 + 1
    with record.timed("data"):
        prompts = make_prompts(session, trial, conversations, batches[-1])
    with record.timed("load"):
        model = load_base(session.modules, trial, session.placement)
        prepare_model(session.modules, model)
        disable_sliding_window(trial, model.config, trial.max_seq_len + new_tokens)
    record.log(
        f"batches {batches} of {trial.max_seq_len} prompt tokens, {new_tokens} new tokens, {trial.base_precision}"
    )
    bench = Generation(record=record, session=session, model=model, new_tokens=new_tokens, repeats=sizes.repeats)
    try:
        with record.timed("measure"):
            fitted = bench.measure_all(prompts, batches, stops) | bench.measure_adapter(prompts, batches, stops)
    finally:
        if session.placement.is_cuda:
            record.peak_vram_bytes = session.modules.torch.cuda.max_memory_allocated()
    for path, largest in fitted.items():
        record.add("largest_batch_sequences", largest, path=path, **bench.context())


def profiled_steps(session: TorchSession, trial: Trial, inputs: Inputs, *, with_adapters: bool) -> ProfiledSteps:
    """Run a few answers on the fast path, with new adapters if asked for. Raises InputError."""
    modules, placement = session.modules, session.placement
    model_facts, _, conversations = inputs
    check_length(trial, trial.new_tokens, model_facts.max_position_embeddings)
    if trial.new_tokens <= RECORDED_STEPS:
        raise InputError(f"new_tokens: expected more than {RECORDED_STEPS}, found {trial.new_tokens}")
    model = load_base(modules, trial, placement)
    prepare_model(modules, model)
    disable_sliding_window(trial, model.config, trial.max_seq_len + trial.new_tokens)
    if with_adapters:
        add_adapters(session, trial, model)
    prompts = make_prompts(session, trial, conversations, trial.micro_batch_size)
    path = FastPath(modules, model, placement, prompts, trial.new_tokens, capture=placement.is_cuda)
    path.generate()
    times = [path.generate().decode_sec for _ in range(PROFILED_ANSWERS)]
    path.begin()

    def run_more() -> None:
        for _ in range(RECORDED_STEPS):
            path.step()
        if placement.is_cuda:
            modules.torch.cuda.synchronize()

    labels = ["decoding", *(["with adapters"] if with_adapters else [])]
    if path.not_fused_reason is not None:
        labels.append(f"(not the fused step of five kernels per layer: {path.not_fused_reason})")
    seconds = [total / (trial.new_tokens - 1) for total in times if total is not None]
    return ProfiledSteps(recipe=" ".join(labels), seconds=seconds, run_more=run_more)


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


def disable_sliding_window(trial: Trial, config: Any, tokens: int) -> None:
    """Disable a sliding window of at least `tokens`, which has no effect. Raises InputError for a narrower one."""
    content = config.to_dict()
    window = find(content).geometry(content).window
    if window is not None and tokens > window:
        raise InputError(
            f"max_seq_len: prompt and answer of {tokens} tokens exceed the sliding window of {window} in "
            f"{trial.model}/config.json, which this trial does not support",
            remedy="reduce max_seq_len or new_tokens",
        )
    config.sliding_window = None


def make_prompts(session: TorchSession, trial: Trial, conversations: list[Conversation], count: int) -> Any:
    """Make `count` prompts of `max_seq_len` tokens each, without padding: int64 on the device. Raises InputError."""
    tokenizer = load_trial_tokenizer(trial)
    packed = dataclasses.replace(
        trial,
        layout="pack",
        micro_batch_size=count,
        gradient_accumulation_steps=1,
        warmup_steps=0,
        measured_steps=1,
    )
    rows = make_rows(packed, conversations, tokenizer)
    ids = [rows[index % len(rows)].ids for index in range(count)]
    return session.modules.torch.tensor(ids, dtype=session.modules.torch.int64, device=session.placement.device)


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

    def measure_all(
        self, prompts: Any, batches: list[int], stops: StopSignals, paths: tuple[str, ...] = PATHS
    ) -> dict[str, int]:
        """Measure each batch on each path; return the largest batch that fitted, by path, 0 if none did."""
        is_cuda = self.session.placement.is_cuda
        fitted = {name: 0 for name in paths if is_cuda or name == DefaultPath.name}
        running = set(fitted)
        for batch in batches:
            tokens: dict[str, Any] = {}
            for name in paths:
                context = {"batch": batch, "path": name, **self.context()}
                if name not in fitted:
                    self.record.add("decode_tokens_per_sec", None, note=NO_GPU, **context)
                else:
                    self._measure_if_smaller_fit(name, prompts[:batch], context, fitted, running, tokens, stops)
            if len(tokens) == len(PATHS):
                same = tokens[PATHS[0]] == tokens[PATHS[1]]
                agreeing = 100.0 * float(same.float().mean())
                self.record.add("agreeing_tokens_percent", agreeing, note=AGREEMENT, batch=batch, **self.context())
        return fitted

    def measure_adapter(self, prompts: Any, batches: list[int], stops: StopSignals) -> dict[str, int]:
        """Run `measure_all` for the fast path with adapters, which stay on the model."""
        if self.session.placement.is_cuda:
            add_adapters(self.session, self.record.trial, self.model)
        return self.measure_all(prompts, batches, stops, (ADAPTER,))

    def _measure_if_smaller_fit(
        self,
        name: str,
        prompts: Any,
        context: dict[str, Any],
        fitted: dict[str, int],
        running: set[str],
        tokens: dict[str, Any],
        stops: StopSignals,
    ) -> None:
        """Measure one batch if the smaller ones fitted, and update `fitted` and `running`."""
        failure: str | None = f"not tried: batch {fitted[name]} was the last that fitted"
        if name in running:
            failure = self._measure_batch(name, prompts, context, tokens, stops)
            free_memory(self.session.modules.torch, is_cuda=self.session.placement.is_cuda)
        if failure is None:
            fitted[name] = len(prompts)
            return
        running.discard(name)
        self.record.add("decode_tokens_per_sec", None, note=failure, **context)

    def _measure_batch(
        self, name: str, prompts: Any, context: dict[str, Any], tokens: dict[str, Any], stops: StopSignals
    ) -> str | None:
        """Measure one batch on one path and store its tokens; return the reason if memory ran out."""
        cuda = self.session.modules.torch.cuda if self.session.placement.is_cuda else None
        if cuda is not None:
            cuda.reset_peak_memory_stats()
        answers: list[Generated] = []
        try:
            path = self._path(name, prompts)
            path.generate()  # warm-up
            for _ in range(self.repeats):
                stops.check()
                answers.append(path.generate())
        except Exception as error:
            # A failed capture raises while its cause is being handled.
            causes = [error, error.__context__]
            messages = [str(cause) for cause in causes if cause is not None and termination.is_out_of_memory(cause)]
            if not messages:
                raise
            return f"out of memory: {' '.join(messages[0].split())[:200]}"
        tokens[name] = answers[-1].tokens
        self._add_measurements(answers, len(prompts), context, note=getattr(path, "not_fused_reason", None))
        peak = None if cuda is None else cuda.max_memory_allocated()
        note = "no CUDA device" if cuda is None else "peak of all allocations, including the model"
        self.record.add("peak_memory_bytes", peak, note=note, **context)
        return None

    def _path(self, name: str, prompts: Any) -> DecodingPath:
        modules, placement = self.session.modules, self.session.placement
        if name == DefaultPath.name:
            return DefaultPath(modules, self.model, placement, prompts, self.new_tokens)
        return FastPath(modules, self.model, placement, prompts, self.new_tokens, capture=True)

    def _add_measurements(
        self, answers: list[Generated], batch: int, context: dict[str, Any], *, note: str | None
    ) -> None:
        first = [answer.time_to_first_token_sec for answer in answers]
        prompt_tokens = batch * self.record.trial.max_seq_len
        values = {
            "time_to_first_token_sec": first,
            "prefill_tokens_per_sec": [prompt_tokens / seconds for seconds in first],
        }
        decode = [answer.decode_sec for answer in answers if answer.decode_sec is not None]
        if decode:
            later = self.new_tokens - 1  # the first token is the prefill's
            values["decode_time_per_token_sec"] = [seconds / later for seconds in decode]
            values["decode_tokens_per_sec"] = [batch * later / seconds for seconds in decode]
        for name, repeated in values.items():
            path_note = f"not the step of five kernels a layer: {note}" if note and name.startswith("decode") else None
            self.record.add(name, summarize(repeated), note=path_note, **context)
        if decode:
            count = weight_bytes_per_token(self.model)
            read = summarize([count / seconds / 1e9 for seconds in values["decode_time_per_token_sec"]])
            chip = gpu_specs.lookup(self.record.fingerprint.get("gpu_name"))
            share = gpu_specs.share_percent(read.median, None if chip is None else chip.memory_gb_per_sec)
            self.record.add("decode_read_gb_per_sec", read, share_percent=share, bytes=count, **context)


def weight_bytes_per_token(model: Any) -> int:
    """Count the bytes of weights that a decoding step reads: all except the embedding table, which it hardly reads."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    count = head.numel() * head.element_size()
    for parameter in model.parameters():
        if parameter is table or parameter is head:
            continue
        count += parameter.numel() * parameter.element_size()
        if (state := getattr(parameter, "quant_state", None)) is not None:
            count += state.absmax.numel() * state.absmax.element_size()
            if state.nested:
                count += state.state2.absmax.numel() * state.state2.absmax.element_size()
    return int(count)


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
