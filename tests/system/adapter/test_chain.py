"""From a training to a server, as README types it: train, collect, check, merge, check, push, serve.check.

Opt-in, because it trains: QLORA_FLEET_CHAIN=1 takes the tests' small model; with QLORA_FLEET_CHAIN=FOLDER the model of
that folder, e.g. what `inv model.demo --real` makes. The server is a stand-in around plain transformers.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import stack
from tests.support.machines.openai_stand_in import StandIn

ASKED = os.environ.get("QLORA_FLEET_CHAIN", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not ASKED, reason="takes minutes; QLORA_FLEET_CHAIN=1, or a model's folder, runs it"),
]
TRAIN = {
    "max_seq_len": 128, "validation": 0.05, "micro_batch_size": 1, "rows_per_step": 2, "max_steps": 6, "lora_rank": 8,
    "learning_rate": 0.001, "prompts": ["What does the function len do?"], "answer_tokens": 16,
}  # fmt: skip


class Served(dict[str, str]):
    """What plain transformers answers, from the merged folder alone."""

    def __init__(self, folder: Path) -> None:
        self._modules = stack.load()
        transformers, torch = self._modules.transformers, self._modules.torch
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()

    def get(self, prompt: str, _otherwise: object = None) -> str:  # type: ignore[override]
        if prompt in TRAIN["prompts"]:  # type: ignore[operator]
            messages = [{"role": "user", "content": prompt}]
            prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = self._tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        mask = self._modules.torch.ones_like(ids)
        out = self._model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=64, do_sample=False)
        text: str = self._tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return text


def test_what_was_trained_is_what_is_served(project) -> None:
    data = project.folder / "small.jsonl"
    lines = Path(project.environment["INVOKE_DATA_PATH"]).read_text().splitlines(keepends=True)
    data.write_text("".join(lines[:300]))
    settings: Mapping[str, Any] = {"train": TRAIN, "data": {"path": str(data)}, "fleet": {"size": 1}}
    project.environment = {
        k: v for k, v in project.environment.items() if k not in ("INVOKE_DATA_PATH", "INVOKE_FLEET_SIZE")
    }
    if ASKED != "1":
        project.environment["INVOKE_MODEL_PATH"] = str(Path(ASKED).resolve())
    (project.folder / "chain.json").write_text(json.dumps(settings))
    project.options = ("-f", str(project.folder / "chain.json"))

    def typed(*words: str) -> str:
        done = project.inv(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    typed("train")
    assert "Held-out loss" in typed("collect", "report")
    run = project.run_folder()
    assert "Held-out loss" in (run / "report" / "index.html").read_text()
    typed("adapter.check", "--answers", "2")
    typed("adapter.merge", "--base", "nf4")
    typed("adapter.check", "--answers", "2")
    forms = {one["name"]: one for one in json.loads((run / "adapter-check.json").read_text())["forms"]}
    recorded = json.loads((run / "training.json").read_text())["evaluations"][-1]["loss"]
    assert forms["trained"]["loss"] == pytest.approx(recorded, abs=0.002)
    assert forms["folder"]["loss"] == pytest.approx(forms["merged-nf4"]["loss"], abs=1e-6)
    typed("adapter.push", "--folder", str(project.folder / "home"))
    with StandIn(Served(run / "merged")) as server:
        assert "answers are the same" in typed("serve.check", server.url)
