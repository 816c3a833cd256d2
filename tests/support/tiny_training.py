"""Fine-tuning small enough for a test: a model of two layers, a byte tokenizer, and a trainer in this process."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.tokenizer import load_tokenizer
from bench.qlora import recipes
from bench.qlora.step import Placement, load_base
from bench.records import Trial
from bench.records.training import Training, TrainingData
from bench.workloads.finetune import checkpoint, checkpoint_manager, resume, training_set
from bench.workloads.finetune import trainer as trainer_module
from bench.workloads.ranks.process import RankGroup

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
MAX_SEQ_LEN = 48
SCORE_FILE = "score.json"  # the scores before and after
# After the step `last`, checkpoints are written only once the file `gate` exists, so that a test can interrupt a
# training in time, even on a busy machine. Ranks are forked from the trial's process and inherit the change.
HELD_SAVES = """
import time
from bench.workloads.finetune.checkpoint_manager import CheckpointManager

save = CheckpointManager.save

def held_save(manager, state, *, wait=False):
    while state.step > last and not gate.exists():
        time.sleep(0.01)
    return save(manager, state, wait=True)

CheckpointManager.save = held_save
"""


def make_folder(
    modules: torch_stack.Stack,
    folder: Path,
    *,
    layers: int = 2,
    width: int = 64,
    model_type: str = "llama",
    **config: Any,
) -> Path:
    """Make a model folder of random weights, with a byte tokenizer; `config` has more keys of config.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    tokenizer = modules.transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )
    model_config = modules.transformers.AutoConfig.for_model(
        model_type, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=264, max_position_embeddings=512, tie_word_embeddings=False, **config,
    )  # fmt: skip
    modules.torch.manual_seed(1)
    modules.transformers.AutoModelForCausalLM.from_config(model_config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return folder


def make_data(path: Path, lines: int = 60) -> Path:
    """Write questions and answers of different lengths."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            messages = [
                {"role": "user", "content": f"What is {number}?"},
                {"role": "assistant", "content": f"{number}" * (1 + number % 5)},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def plan(folder: Path, data: Path, *, training: dict[str, Any] | None = None, **changes: Any) -> Trial:
    """Make the trial of a fine-tuning of a few steps over `data`."""
    files = TrainingData(files=[str(data)], max_seq_len=MAX_SEQ_LEN, validation_share=0.1)
    settings: dict[str, Any] = {"rows_per_step": 4, "max_steps": 6, "evaluate_every": 2, "checkpoint_sec": 0.0}
    fields: dict[str, Any] = {
        "name": "train", "reason": "a test", "suite": "train", "profile": "tiny", "model": str(folder),
        "data": str(data), "kind": "finetune", "recipe": "fast", "max_seq_len": MAX_SEQ_LEN, "micro_batch_size": 1,
        "lora_rank": 4, "lora_dropout": 0.1, "optimizer": "adamw_torch", "learning_rate": 0.01,
    }  # fmt: skip
    return Trial(**(fields | changes), training=Training(**({"data": files} | settings | (training or {}))))


@dataclass(kw_only=True)
class Lab:
    """Parts of a training in this process, without separate rank processes."""

    modules: torch_stack.Stack
    placement: Placement
    trial: Trial
    reports: list[dict[str, Any]] = field(default_factory=list)
    base: Any = None

    @classmethod
    def create(cls, modules: torch_stack.Stack, trial: Trial) -> "Lab":
        torch = modules.torch
        return cls(
            modules=modules,
            placement=Placement(device=torch.device("cpu"), compute_dtype=torch.float32),
            trial=trial,
        )

    def load_inputs(self) -> "Lab":
        """Load everything that a process loads once."""
        self.tokenizer = load_tokenizer(Path(self.trial.model))
        self.material = training_set.load(self.trial, None)
        self.base = load_base(self.modules, self.trial, self.placement)
        return self

    def trainer(
        self,
        checkpoints: Path | None,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        loading_sec: float = 0.0,
    ) -> trainer_module.Trainer:
        """Make a trainer over the base that `load_inputs` loaded, or else over a new one."""
        base = self.base if self.base is not None else load_base(self.modules, self.trial, self.placement)
        self.base = None
        step = recipes.build(self.trial.recipe, self.modules, self.trial, self.placement, base)
        self.identity = resume.identify(self.trial, "model", self.material.sha256)
        world = trainer_module.TrainContext(
            group=RankGroup(self.modules.torch),
            report=lambda **line: self.reports.append(line),
            on_progress=lambda _phase, _step: None,
            stop_requested=stop_requested,
            checkpoints=checkpoints,
            identity=self.identity,
            started=time.monotonic() - loading_sec,
        )
        return trainer_module.Trainer(self.modules, self.trial, step, self.tokenizer, self.material, world)

    def resumed(self, checkpoints: Path, **options: Any) -> trainer_module.Trainer:
        """Make a trainer that resumes from the newest checkpoint, if there is one."""
        trainer = self.trainer(checkpoints, **options)
        trainer.restore(resume.find_checkpoint(checkpoints, self.identity, lambda _: None))
        return trainer

    def train(self, folder: Path, **options: Any) -> str:
        """Train from the newest checkpoint in `folder` to the end, write the adapter and return the stop reason."""
        checkpoints = folder / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        checkpoint.clear_parts(checkpoints)
        trainer = self.resumed(checkpoints, **options)
        stop = trainer.run()
        if stop in ("finished", "early"):
            _, adapter = trainer.adapter()
            checkpoint_manager.write_adapter(folder, adapter, trainer.weights, Path(self.trial.model))
            trainer.set_adapter(adapter)
            score = trainer.score()
            scores = [] if score is None else [*score.before, *score.after]
            (folder / SCORE_FILE).write_text(json.dumps(scores))
        return stop


def in_child(work: Callable[[], Any]) -> int:
    """Fork a child that calls `work` and exits with 0; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child of a fork must never return
            import traceback

            traceback.print_exc()
            os._exit(70)
    return pid
