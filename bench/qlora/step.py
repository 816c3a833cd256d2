"""QLoRA: a base model in NF4, the optimizer of its adapters, and the measured training step.

`bench.qlora.recipes` combines them. Weights are read only from safetensors; no code in a model folder is run. A
fine-tuning (`bench.workloads.finetune`) has the same model, loss and optimizer, but its own steps.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.architectures import find
from bench.architectures.architecture import has_all_weights
from bench.architectures.unregistered import BASE_RECORD, HAS_LOGITS
from bench.data.collate import Batch
from bench.data.inputs import InputError
from bench.data.model_folder import read_config
from bench.harness.record import PhaseClock, Record
from bench.harness.termination import StopSignals
from bench.machine import fingerprint, preflight
from bench.machine.fingerprint import cpu_flags
from bench.qlora.base_models import Skeleton, has_liger, liger_patch, load_text_model, nf4_options, read_base, widen
from bench.records import Trial
from bench.records.adapter import NF4, BaseRecord
from bench.torch_stack import Stack
from bench.torch_stack import load as load_stack

# Inputs of a transformers model. Given restarting positions and no mask, the model separates the samples.
MODEL_INPUTS = ("input_ids", "attention_mask", "labels", "position_ids")
# Values of a model's config in a training: no cached keys and values; no part of the loss for the balance of experts,
# whose routers are frozen, in which padding would count; weights that are frozen, in NF4, are not clamped.
TRAINED_WITH = {"use_cache": False, "output_router_logits": False, "altup_coef_clip": None}
ADDS_IN_PLACE = "roc_bert"
MAX_GRADIENT_NORM = 1.0  # default of transformers' Trainer, as in the published measurements


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The torch.device of the steps and the torch.dtype of matrix products.

    bfloat16 as `compute_dtype` means autocast, as in the published loop; float32 means no autocast.
    """

    device: Any
    compute_dtype: Any

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")


def choose_placement(stack: Stack) -> Placement:
    """Choose the first GPU in bf16, else the CPU: in bf16 if it has the instructions, otherwise in float32.

    Measured with the small model at 8 x 64, one core, seconds per step in bf16 and in float32: CPU with avx512_bf16
    0.15 and 0.17; limited to plain AVX-512 0.36 and 0.19; limited to AVX2 1.82 and 0.18.
    """
    torch = stack.torch
    torch.set_float32_matmul_precision("high")  # TF32 for float32 products, as in the published measurements
    if torch.cuda.is_available():
        return Placement(device=torch.device("cuda", 0), compute_dtype=torch.bfloat16)
    has_bf16 = not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_flags())
    return Placement(device=torch.device("cpu"), compute_dtype=torch.bfloat16 if has_bf16 else torch.float32)


@dataclass(frozen=True, kw_only=True)
class TorchSession:
    """The imported stack and the device it computes on."""

    modules: Stack
    placement: Placement


def open_session(record: Record, stops: StopSignals) -> TorchSession:
    """Import the stack, choose the device, and put both into the record's fingerprint."""
    with record.timed("import"):
        modules = load_stack()
        preflight.check(modules, record.trial)
        placement = choose_placement(modules)
    stops.check()
    record.fingerprint.update(fingerprint.device_facts(modules.torch))
    record.fingerprint["compute_dtype"] = str(placement.compute_dtype).removeprefix("torch.")
    processor = record.fingerprint["gpu_name"] or record.fingerprint["cpu_model"]
    record.log(f"device {placement.device} in {record.fingerprint['compute_dtype']}: {processor}")
    return TorchSession(modules=modules, placement=placement)


def load_base(stack: Stack, trial: Trial, placement: Placement) -> Any:
    """Load `trial.model` onto the device: in NF4 with double quantization, or in plain bf16."""
    torch, is_nf4 = stack.torch, trial.base_precision == NF4
    model = load_text_model(
        stack,
        trial.model,
        device_map={"": placement.device},
        **(nf4_options(stack, placement.compute_dtype) if is_nf4 else {}),
        **stack.dtype_argument(torch.bfloat16),
    )
    model.base_record = read_base(model)
    if is_nf4 and placement.compute_dtype != torch.bfloat16:
        widen(torch, model, placement.compute_dtype)
    if "optimizer" in trial.workload.needs:
        _disable_weight_packing(model)  # before the first evaluation
    for config in (model.config, model.config.get_text_config()):
        vars(config).update(TRAINED_WITH)
    return model


def _disable_weight_packing(model: Any) -> None:
    """Keep bitsandbytes 0.50.2 from repacking weights at the first evaluation, on a CPU with bf16 instructions.

    Products of repacked weights have no gradient, and bitsandbytes then uses them in training too.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def probe(stack: Stack, trial: Trial) -> BaseRecord:
    """Make the trial's base with its adapters on the meta device and return its record, as of the training.

    Raises InputError for a model that transformers or peft cannot train so.
    """
    try:
        model = Skeleton(stack, Path(trial.model), nf4=trial.base_precision == NF4).model
        if trial.gradient_checkpointing:
            recompute_layers(model)
        return read_base(add_lora(stack, trial, model))
    except InputError:
        raise
    except Exception as error:  # each library has its own
        versions = f"transformers {stack.transformers.__version__} and peft {stack.peft.__version__}"
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{trial.model}: {versions} cannot train it as configured: {reason}",
            remedy="change train.gradient_checkpointing or train.lora_targets, or use another model",
        ) from error


def sized_config(trial: Trial) -> dict[str, Any]:
    """Read the config of a trial's model for predictions of its memory.

    That of a type without a whole declaration gets the record of its base, which takes seconds. Raises like `probe`.
    """
    config = read_config(Path(trial.model))
    if has_all_weights(config):
        return config  # Liger knows these types
    config[HAS_LOGITS] = has_liger() and liger_patch(config) is None
    return config | {BASE_RECORD: probe(load_stack(), replace(trial, base_precision=NF4))}


def recompute_layers(base: Any) -> None:
    """Recompute layers in the backward pass, not reentrant as PyTorch recommends: versions have other defaults."""
    if base.config.model_type == ADDS_IN_PLACE:
        raise ValueError(
            f"{ADDS_IN_PLACE} adds in place to a product of its embeddings, so these cannot have a gradient"
        )
    base.enable_input_require_grads()
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def add_lora(stack: Stack, trial: Trial, model: Any) -> Any:
    """Freeze `model` and add new adapters, initialized by the trial's seed."""
    stack.transformers.set_seed(trial.seed)
    config = stack.peft.LoraConfig(
        r=trial.lora_rank,
        lora_alpha=trial.lora_alpha,
        lora_dropout=trial.lora_dropout,
        target_modules=list(find(read_config(Path(trial.model))).select(trial.lora_targets)),
        bias="none",
        task_type="CAUSAL_LM",
    )
    adapted = stack.peft.get_peft_model(model, config)
    adapted.train()
    return adapted


def make_optimizer(stack: Stack, trial: Trial, model: Any, placement: Placement) -> tuple[Any, str]:
    """Return the optimizer of the adapters and its description. Paging needs CUDA's unified memory."""
    groups, library = [parameter_group(trial, model)], stack.bitsandbytes.optim
    if trial.optimizer == "adamw_torch":
        optimizer = stack.torch.optim.AdamW(groups, fused=placement.is_cuda)
        return optimizer, "torch AdamW, 32 bit" + (", fused" if placement.is_cuda else "")
    if placement.is_cuda:
        return library.PagedAdamW8bit(groups), "bitsandbytes AdamW, 8 bit, paged"
    # On the CPU bitsandbytes' paged optimizer keeps its state in plain memory anyway.
    return library.AdamW8bit(groups), "bitsandbytes AdamW, 8 bit, not paged: there is no CUDA device"


def parameter_group(trial: Trial, model: Any) -> dict[str, Any]:
    """Return the trained parameters with their rates, as an optimizer takes them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = 0.0 if trial.training is None else trial.training.weight_decay
    return {"params": trained, "lr": trial.learning_rate, "weight_decay": decay}


class TrainingStep:
    """One optimizer step over several micro-batches: forward, backward, clip, update.

    `optimizer_name` describes the optimizer and `recipe` the recipe that was built. `notes` lists further features in
    use; `flags` lists requested features that are not in use, with reasons. `inputs` names the fields of a batch that
    the model takes. `may_capture`: forward and backward may become CUDA graphs; `no_capture_reason` is set when capture
    is given up. `has_gradient_hooks`: parameters have hooks on their accumulated gradients.
    """

    recipe = ""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    may_capture = False
    has_gradient_hooks = False
    no_capture_reason: str | None = None
    load_sec = 0.0

    def __init__(
        self,
        stack: Stack,
        model: Any,
        optimizer: Any,
        placement: Placement,
        optimizer_name: str = "",
        *,
        autocast: bool = True,
        inputs: tuple[str, ...] = MODEL_INPUTS,
    ) -> None:
        self.model, self.optimizer, self.optimizer_name = model, optimizer, optimizer_name
        self.clock = PhaseClock(stack.torch, is_cuda=placement.is_cuda)
        self._torch, self._placement = stack.torch, placement
        self._in_bf16 = autocast and placement.compute_dtype == stack.torch.bfloat16
        self._inputs = inputs
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    @property
    def trained_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._trained)

    def facts(self) -> dict[str, Any]:
        """Return what was built, for a trial's fingerprint."""
        return {
            "recipe": self.recipe,
            "recipe_notes": ", ".join(self.notes) or None,
            "optimizer": self.optimizer_name,
            "trained_parameters": self.trained_parameters,
        }

    def __call__(self, batches: Iterable[Batch], accumulation: int) -> Any:
        """Run a step; return the mean loss of `accumulation` micro-batches, a device tensor: reading it waits."""
        clock, total = self.clock, 0.0
        clock.begin()
        for batch in batches:
            inputs = self.inputs(batch)
            clock.end("data")
            total = total + self.forward_backward(inputs, 1 / accumulation) / accumulation
        self._torch.nn.utils.clip_grad_norm_(self._trained, MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.clear_gradients()
        clock.end("optimizer")
        return total

    def run_timed(self, batches: Iterator[Batch], accumulation: int) -> tuple[float, Any, list[Batch]]:
        """Run a step over the next `accumulation` batches; return its seconds, the mean loss and these batches.

        The device is synchronised before and after; waiting for a batch is part of the step.
        """
        used: list[Batch] = []

        def take_batches() -> Iterator[Batch]:
            for batch in islice(batches, accumulation):
                used.append(batch)
                yield batch

        self.synchronize()
        start = time.perf_counter()
        total = self(take_batches(), accumulation)
        self.synchronize()
        return time.perf_counter() - start, total, used

    def forward_backward(self, inputs: dict[str, Any], share: float) -> Any:
        """Add the gradient of `share` times the micro-batch's mean loss to every `grad`; return the mean loss.

        The result is on the device.
        """
        with self.autocast():
            mean = self.model(**inputs).loss
        self.clock.end("forward")
        (mean * share).backward()
        self.clock.end("backward")
        return mean.detach()

    @property
    def capture_status(self) -> str | None:
        """CUDA graph use of the micro-batches: "yes", "no: REASON", or None if capture was not tried."""
        return None

    def clear_gradients(self) -> None:
        """Clear all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the model's inputs from a batch, on its device."""
        return {
            name: tensor.to(self._placement.device, non_blocking=True)
            for name in self._inputs
            if (tensor := getattr(batch, name)) is not None
        }

    def autocast(self) -> Any:
        """Return the autocast context in which the model computes."""
        return self._torch.autocast(self._placement.device.type, self._torch.bfloat16, enabled=self._in_bf16)

    def on_device(self) -> Any:
        """Return a context inside which all weights are on the device, for other code that uses the model."""
        return getattr(self.model, "on_device", contextlib.nullcontext)()

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        if self._placement.is_cuda:
            self._torch.cuda.synchronize()
