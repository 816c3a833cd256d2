"""`vllm serve` as `inv serve` starts it, by plain transformers, peft and bitsandbytes: base and adapter, one at a time.

Not covered: vLLM's own kernels, batches, and what it does with arguments that are not read here.
"""

import argparse
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import torch_stack
from tests.support.machines.fake_openai import StandIn


class Plain(StandIn):
    """Answers greedily, as the model and its adapter do."""

    def __init__(self, base: str, adapter: str, tokenizer: str, *, is_nf4: bool, **served: Any) -> None:
        self._modules = torch_stack.load()
        transformers, torch = self._modules.transformers, self._modules.torch
        rounded = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )  # fmt: skip
        how = {"quantization_config": rounded} if is_nf4 else {}
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **how)
        self._model = self._modules.peft.PeftModel.from_pretrained(model, adapter).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
        ends = model.generation_config.eos_token_id
        self._ends = {*(ends if isinstance(ends, list) else [ends]), self._tokenizer.eos_token_id}
        super().__init__({}, **served)  # listens, so what takes long is done before

    def answer(self, document: Mapping[str, Any]) -> tuple[str, str]:
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
                eos_token_id=sorted(self._ends),
                pad_token_id=self._tokenizer.eos_token_id,
            )
        made = out[0, ids.shape[1] :].tolist()
        text: str = self._tokenizer.decode(made, skip_special_tokens=True)
        return text, "stop" if made[-1] in self._ends else "length"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs=2)
    parser.add_argument("--served-model-name")
    parser.add_argument("--lora-modules")
    parser.add_argument("--tokenizer")
    parser.add_argument("--quantization")
    given, _ = parser.parse_known_args()
    name, _, adapter = given.lora_modules.partition("=")
    assert given.words[0] == "serve"
    assert Path(adapter, "adapter_config.json").is_file()
    served = {"key": os.environ["VLLM_API_KEY"], "models": (given.served_model_name, name)}
    is_nf4, where = given.quantization == "bitsandbytes", (os.environ["POD_IP"], 8000)
    with Plain(given.words[1], adapter, given.tokenizer, is_nf4=is_nf4, address=where, **served):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
