"""Losses and greedy answers of a GGUF file, computed by llama.cpp through the package llama-cpp-python on the CPU.

Prompts are token ids, as for the other forms. `count_split_prompts` compares llama.cpp's own tokenizer with them.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.kernels.loss import token_losses
from bench.workloads.finetune.answers import GeneratedAnswer, PromptCase

PACKAGE = "llama_cpp"


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def gguf_path(folder: Path) -> Path:
    """Return the GGUF file of a merged folder. Raises InputError."""
    paths = sorted(folder.glob("*.gguf"))
    if len(paths) != 1:
        raise InputError(f"{folder}: {len(paths)} GGUF files, expected one", remedy="merge again: inv adapter.merge")
    return paths[0]


class LlamaCpp:
    """Loaded GGUF file with `positions` tokens of context; logits of all positions are kept."""

    def __init__(self, path: Path, tokenizer: Any, torch: Any, positions: int) -> None:
        """Load the file. Raises InputError if llama.cpp refuses it."""
        self._library: Any = importlib.import_module(PACKAGE)
        self._tokenizer, self._torch = tokenizer, torch
        try:
            self._model = self._library.Llama(
                model_path=str(path), n_ctx=positions, n_gpu_layers=0, logits_all=True, verbose=False
            )
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: llama.cpp cannot load it: {error}", remedy="merge again") from error

    def losses(self, examples: Iterable[Any]) -> Iterator[float]:
        """Compute each example's summed loss over its targets."""
        for example in examples:
            ids = self._torch.tensor(example.ids.tolist())
            losses = token_losses(self.logits(example.ids.tolist())[:-1], ids[1:])
            yield float((losses.double() * self._torch.tensor(list(example.targets[1:]))).sum())

    def logits(self, ids: Sequence[int]) -> Any:
        self._model.reset()
        self._model.eval(ids)
        return self._torch.from_numpy(self._model.scores[: len(ids)])

    def answers(self, cases: Iterable[PromptCase]) -> list[GeneratedAnswer]:
        """Answer each prompt greedily, up to a token that ends an answer according to the file."""
        return [self._answer(case) for case in cases]

    def _answer(self, case: PromptCase) -> GeneratedAnswer:
        logits, answer = self.logits(case.prompt), list[int]()
        while len(answer) < case.max_tokens:
            token = int(logits[-1].argmax())
            if self._ends_answer(token):
                return GeneratedAnswer(self._decode(answer), has_ended=True)
            answer.append(token)
            self._model.eval([token])
            logits = self._torch.from_numpy(self._model.scores[: self._model.n_tokens])
        return GeneratedAnswer(self._decode(answer), has_ended=False)

    def _ends_answer(self, token: int) -> bool:
        vocabulary = self._library.llama_model_get_vocab(self._model.model)
        return bool(self._library.llama_vocab_is_eog(vocabulary, token))

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def count_split_prompts(self, cases: Iterable[PromptCase]) -> int:
        """Count the prompts whose text llama.cpp's tokenizer splits into other tokens than that of the training.

        Both split the text of the prompt's tokens, which may differ from the prompt in spaces.
        """
        texts = [self._tokenizer.decode(case.prompt) for case in cases]
        return sum(
            self._model.tokenize(text.encode(), add_bos=False, special=True)
            != self._tokenizer(text, add_special_tokens=False).input_ids
            for text in texts
        )
