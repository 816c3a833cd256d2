"""The reference recipe in a bare loop: the speed of the stack itself. Prints one JSON line; see harness_cost.

Written from the recipe's description and importing nothing of bench, so that it cannot share a mistake with it. One
clock around all measured steps, no synchronisation within; each step's own time is stamped by the device.
"""

import argparse
import json
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from bitsandbytes.optim import AdamW8bit, PagedAdamW8bit
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training


def padded(arguments: argparse.Namespace, steps: int) -> torch.utils.data.DataLoader[Any]:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(arguments.model)
    chats = [json.loads(line)["messages"] for line in Path(arguments.data).read_text().splitlines()]
    random.Random(arguments.seed).shuffle(chats)
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats[: steps * arguments.batch]]
    rows = [ids[: arguments.seq] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    samples = []
    for index in range(steps * arguments.batch):
        ids = torch.tensor(rows[index % len(rows)])
        missing = arguments.seq - len(ids)
        fill = torch.nn.functional.pad
        samples.append(
            {
                "input_ids": fill(ids, (0, missing), value=tokenizer.pad_token_id or tokenizer.eos_token_id),
                "attention_mask": fill(torch.ones_like(ids), (0, missing), value=0),
                "labels": fill(ids, (0, missing), value=-100),
            }
        )
    return torch.utils.data.DataLoader(samples, batch_size=arguments.batch, pin_memory=torch.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "dtype"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("seq", "batch", "warmup", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    arguments = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dtype = getattr(torch, arguments.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model,
        quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        ),
        dtype=dtype,
        device_map={"": device},
    )
    model.config.use_cache = False
    model = prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    transformers.set_seed(arguments.seed)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = PagedAdamW8bit if device.type == "cuda" else AdamW8bit
    optimizer = adamw(trained, lr=arguments.learning_rate, weight_decay=0.0)

    losses, stamps, began = [], [], 0.0
    for step, batch in enumerate(padded(arguments, arguments.warmup + arguments.steps)):
        if step == arguments.warmup:
            _wait(device)
            began = time.perf_counter()
            stamps.append(_stamp(device))
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step >= arguments.warmup:
            stamps.append(_stamp(device))
    _wait(device)
    seconds = time.perf_counter() - began
    report = {
        "mean_step_sec": seconds / arguments.steps,
        "step_sec": [_between(*pair) for pair in pairwise(stamps)],
        "loss": [float(loss) for loss in losses],
    }
    print(json.dumps(report), flush=True)


def _stamp(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(before: Any, after: Any) -> float:
    return after - before if isinstance(before, float) else before.elapsed_time(after) / 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
