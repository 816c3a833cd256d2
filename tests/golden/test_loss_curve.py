"""Golden test of the loss curve of the reference recipe on a small model.

    UPDATE_GOLDEN=1 python -m pytest tests/golden/test_loss_curve.py

records a new curve. Do that only for a deliberate change of the computation, and mention it in the commit.

The text is made from arithmetic, not by `inv model.demo`, whose text is the documentation of the running Python:
another version of Python would have another curve.
"""

import json
import os
from pathlib import Path

import pytest

from bench.data import demo

GOLDEN = Path(__file__).parent / "loss_curve" / "reference.json"
STEPS = 12
# Largest difference from the recorded curve, measured over the 12 steps: 0.0001 without the processor's vector
# instructions (ATEN_CPU_CAPABILITY=default), 0 with AVX2, with two threads, without checkpointing; 0.13 with a base in
# bf16, 0.16 with a learning rate 10 % lower, 0.69 with half the alpha. Not detected: 32-bit AdamW (0.0005), because
# bitsandbytes keeps the state of tensors this small in 32 bits.
TOLERANCE = 0.005
# Float32 everywhere: with bf16 the last digits depend on which instructions the processor has.
FLOAT32 = "import bench.qlora.step; bench.qlora.step.cpu_flags = frozenset"


def chats() -> list[dict[str, list[dict[str, str]]]]:
    """Make 144 questions of unequal length, the same on every machine."""
    conversations = []
    for left in range(2, 14):
        for right in range(1, 13):
            steps = ", ".join(str(left * step) for step in range(1, right + 1))
            question = f"What is {left} times {right}?"
            answer = f"Counting by {left}: {steps}. So {left} times {right} is {left * right}."
            pair = (("user", question), ("assistant", answer))
            conversations.append({"messages": [{"role": role, "content": content} for role, content in pair]})
    return conversations


@pytest.mark.slow
def test_the_reference_recipe_still_learns_along_the_recorded_curve(tmp_path, make_trial, run_trial):
    model, data = tmp_path / "model", tmp_path / "chats.jsonl"
    model.mkdir()
    samples = chats()
    data.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    demo.build_tokenizer(model, [message["content"] for sample in samples for message in sample["messages"]])
    demo.build_model(model, num_hidden_layers=2, vocab_size=2048)
    trial = make_trial(
        model=str(model),
        data=str(data),
        max_seq_len=64,
        micro_batch_size=8,
        warmup_steps=0,
        measured_steps=STEPS,
        learning_rate=4e-3,
        lora_dropout=0.0,  # its random numbers depend on the CPU's library
    )
    result, _ = run_trial(trial, FLOAT32)
    assert result.fingerprint["compute_dtype"] == "float32"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        versions = {name: result.fingerprint[name] for name in ("torch", "transformers", "peft", "bitsandbytes")}
        document = {"recorded_with": versions, "padding_percent": result.metrics.padding_percent}
        document["loss"] = [round(loss, 4) for loss in result.steps.loss]
        GOLDEN.write_text(json.dumps(document, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert result.metrics.padding_percent == pytest.approx(golden["padding_percent"])  # the same tokens, exactly
    assert result.steps.loss == pytest.approx(golden["loss"], abs=TOLERANCE)
    # The tolerance is meaningful only if learning moves the curve by much more.
    assert golden["loss"][0] - golden["loss"][-1] > 20 * TOLERANCE
