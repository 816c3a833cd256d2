"""QLoRA: a base model in NF4, the optimizer of its adapters, and the training step that is measured.

`bench.qlora.recipes` puts them together. Weights are read from safetensors alone; no code in a model folder is run. A
fine-tuning (`bench.workloads.finetune`) has the same model, loss and optimizer, and steps of its own.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.data.collate import Batch
from bench.harness.phase_timer import PhaseClock
from bench.machine.fingerprint import cpu_flags
from bench.records import Trial
from bench.torch_stack import Stack

# The inputs of a transformers model. With restarting positions and no mask it separates samples by itself.
MODEL_INPUTS = ("input_ids", "attention_mask", "labels", "position_ids")
MAX_GRADIENT_NORM = 1.0  # the default of transformers' Trainer, as in the published measurements


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The torch.device of the steps, and the torch.dtype of matrix products.

    `compute_dtype` bfloat16 means autocast, as in the published loop; float32 means none.
    """

    device: Any
    compute_dtype: Any

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")


def place(stack: Stack) -> Placement:
    """The first GPU in bf16; without one the CPU, in bf16 if it has the instructions, else in float32.

    Measured with the small model at 8 x 64, one core, seconds a step in bf16 and in float32: a CPU with avx512_bf16
    0.15 and 0.17; held to plain AVX-512 0.36 and 0.19; held to AVX2 1.82 and 0.18.
    """
    torch = stack.torch
    torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32, as in the published measurements
    if torch.cuda.is_available():
        return Placement(device=torch.device("cuda", 0), compute_dtype=torch.bfloat16)
    has_bf16 = not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_flags())
    return Placement(device=torch.device("cpu"), compute_dtype=torch.bfloat16 if has_bf16 else torch.float32)


def load_base(stack: Stack, trial: Trial, placement: Placement) -> Any:
    """The model of `trial.model` on the device: NF4 with double quantization, or plain bf16."""
    torch, transformers = stack.torch, stack.transformers
    quantization = None
    if trial.base_precision == "nf4":
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=placement.compute_dtype,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        trial.model,
        quantization_config=quantization,
        device_map={"": placement.device},
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        **stack.dtype_argument(placement.compute_dtype if quantization else torch.bfloat16),
    )
    model.config.use_cache = False  # training does not need cached keys and values
    if trial.kind != "inference":
        _stay_differentiable(model)
    return model


def _stay_differentiable(model: Any) -> None:
    """Keep bitsandbytes 0.50.2 from packing weights anew at the first evaluation, on a CPU with bf16 instructions.

    Its products over packed weights have no gradient, and it uses them from then on, in training too.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def make_optimizer(stack: Stack, trial: Trial, model: Any, placement: Placement) -> tuple[Any, str]:
    """The optimizer of the adapters, and its description: paging needs CUDA's unified memory."""
    parameters = list(_groups(trial, model))
    decay = 0.0 if trial.training is None else trial.training.weight_decay
    if trial.optimizer == "adamw_torch":
        optimizer = stack.torch.optim.AdamW(
            parameters, lr=trial.learning_rate, weight_decay=decay, fused=placement.is_cuda
        )
        return optimizer, "torch AdamW, 32 bit" + (", fused" if placement.is_cuda else "")
    if placement.is_cuda:
        optimizer = stack.bitsandbytes.optim.PagedAdamW8bit(parameters, lr=trial.learning_rate, weight_decay=decay)
        return optimizer, "bitsandbytes AdamW, 8 bit, paged"
    # On the CPU bitsandbytes' paged optimizer keeps its state in plain memory anyway.
    optimizer = stack.bitsandbytes.optim.AdamW8bit(parameters, lr=trial.learning_rate, weight_decay=decay)
    return optimizer, "bitsandbytes AdamW, 8 bit, not paged: there is no CUDA device"


def _groups(trial: Trial, model: Any) -> Iterator[dict[str, Any]]:
    """Trained parameters by learning rate: one group, or with LoRA+ (arXiv 2402.12354) the matrices A, then B."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    ratio = 1.0 if trial.training is None else trial.training.lora_plus_ratio
    if ratio == 1.0:
        yield {"params": [parameter for _, parameter in trained], "lr": trial.learning_rate}
        return
    for factor, is_b in ((1.0, False), (ratio, True)):
        chosen = [parameter for name, parameter in trained if ("lora_B" in name) is is_b]
        yield {"params": chosen, "lr": trial.learning_rate * factor}


class TrainingStep:
    """One optimizer step over the micro-batches it is given: forward, backward, clip, update.

    `optimizer_name` describes the optimizer, `recipe` what was built, `notes` what else was used, `flags` what was not
    built as asked for, and why. `inputs` are the fields of a batch that the model takes, where a batch has them.
    `may_capture`: forward and backward may become CUDA graphs; `why_not` says why that ended.
    """

    recipe = ""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    may_capture = False
    why_not: str | None = None

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

    def __call__(self, batches: Iterable[Batch], accumulation: int) -> Any:
        """The mean loss of `accumulation` micro-batches, a tensor on the device: reading it waits for the step."""
        clock, total = self.clock, 0.0
        clock.begin()
        for batch in batches:
            inputs = self.inputs(batch)
            clock.end("data")
            total = total + self.gradient(inputs, 1 / accumulation) / accumulation
        self._torch.nn.utils.clip_grad_norm_(self._trained, MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.clear()
        clock.end("optimizer")
        return total

    def gradient(self, inputs: dict[str, Any], share: float) -> Any:
        """Add the gradient of `share` times the micro-batch's mean loss to every `grad`; that mean, on the device."""
        with self.precision():
            mean = self.model(**inputs).loss
        self.clock.end("forward")
        (mean * share).backward()
        self.clock.end("backward")
        return mean.detach()

    @property
    def captured(self) -> str | None:
        """Whether micro-batches were CUDA graphs: yes, no and why, or None where that was not tried."""
        return None

    def clear(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model takes of a batch, on its device."""
        return {
            name: tensor.to(self._placement.device, non_blocking=True)
            for name in self._inputs
            if (tensor := getattr(batch, name)) is not None
        }

    def precision(self) -> Any:
        """The context in which the model computes."""
        return self._torch.autocast(self._placement.device.type, self._torch.bfloat16, enabled=self._in_bf16)

    def on_device(self) -> Any:
        """The context in which other code computes with the model: inside, all of its weights are there."""
        return getattr(self.model, "on_device", contextlib.nullcontext)()

    def wait(self) -> None:
        """Wait until the device has done everything queued."""
        if self._placement.is_cuda:
            self._torch.cuda.synchronize()
