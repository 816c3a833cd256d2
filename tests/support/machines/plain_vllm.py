"""Fake `vllm serve` with the arguments of `inv serve`: runs base and adapter with transformers, peft, bitsandbytes.

Not covered: vLLM's kernels, batches, and arguments that are not parsed here.
"""

import argparse
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import torch_stack
from tests.support.machines.fake_openai import FakeOpenAI


class TransformersServer(FakeOpenAI):
    """Server that decodes greedily with the model and its adapter."""

    def __init__(self, base: str, adapter: str, tokenizer: str, *, is_nf4: bool, **served: Any) -> None:
        self._modules = torch_stack.load()
        transformers, torch = self._modules.transformers, self._modules.torch
        nf4_config = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )  # fmt: skip
        options = {"quantization_config": nf4_config} if is_nf4 else {}
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options)
        self._model = self._modules.peft.PeftModel.from_pretrained(model, adapter).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
        eos_ids = model.generation_config.eos_token_id
        self._eos_ids = {*(eos_ids if isinstance(eos_ids, list) else [eos_ids]), self._tokenizer.eos_token_id}
        super().__init__({}, **served)  # listens as soon as the model is loaded

    def generate(self, document: Mapping[str, Any]) -> tuple[str, str]:
        prompt = document.get("prompt")
        if prompt is None:
            prompt = self._tokenizer.apply_chat_template(
                document["messages"], tokenize=False, add_generation_prompt=True
            )
        ids = self._tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        with self._modules.torch.no_grad():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=self._modules.torch.ones_like(ids),
                max_new_tokens=document["max_tokens"],
                do_sample=False,
                eos_token_id=sorted(self._eos_ids),
                pad_token_id=self._tokenizer.eos_token_id,
            )
        generated = out[0, ids.shape[1] :].tolist()
        text: str = self._tokenizer.decode(generated, skip_special_tokens=True)
        return text, "stop" if generated[-1] in self._eos_ids else "length"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs=2)
    parser.add_argument("--served-model-name")
    parser.add_argument("--lora-modules")
    parser.add_argument("--tokenizer")
    parser.add_argument("--quantization")
    options, _ = parser.parse_known_args()
    name, _, adapter = options.lora_modules.partition("=")
    assert options.command[0] == "serve"
    assert Path(adapter, "adapter_config.json").is_file()
    served = {"key": os.environ["VLLM_API_KEY"], "models": (options.served_model_name, name)}
    is_nf4, address = options.quantization == "bitsandbytes", (os.environ["POD_IP"], 8000)
    with TransformersServer(options.command[1], adapter, options.tokenizer, is_nf4=is_nf4, address=address, **served):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
