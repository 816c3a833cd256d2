"""Conversations with an adapter as it was trained, answered greedily one after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import torch_stack
from bench.adapter import lora
from bench.data.masking import encode_prompt
from bench.data.tokenizer import load_tokenizer
from bench.qlora.step import choose_placement
from bench.records import Trial
from bench.workloads.finetune import evaluate
from bench.workloads.finetune.training_set import training_of


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """Request to answer conversations, each a list of the user's turns, with at most `most` tokens an answer."""

    trial: Trial
    adapter: str
    model_sha256: str | None
    conversations: list[list[str]]
    most: int


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """Answers of each conversation, and the number that reached the length limit."""

    answers: list[list[str]]
    unended: int


def answer_conversations(request: ChatRequest, log: Callable[[str], None]) -> ChatAnswer:
    """Answer every turn in order and log each answer at once. Raises InputError and InputRejected."""
    model, adapter = Path(request.trial.model), Path(request.adapter)
    lora.check_base(model, adapter, request.model_sha256)
    modules, tokenizer = torch_stack.load(), load_tokenizer(model)
    step, peft_model = lora.load_trained(modules, request.trial, choose_placement(modules), adapter)
    special_tokens = training_of(request.trial).data.special_tokens
    answers: list[list[str]] = []
    unended = 0
    for turns in request.conversations:
        messages: list[dict[str, str]] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            prompt = encode_prompt(tokenizer, "chat", messages, special_tokens, lambda message: log(f"[{message}]"))
            text, has_ended = evaluate.generate_answer(modules, step, peft_model, tokenizer, prompt, request.most)
            messages.append({"role": "assistant", "content": text})
            unended += not has_ended
            log(text if has_ended else f"{text} [not ended after {request.most} tokens]")
        answers.append([message["content"] for message in messages if message["role"] == "assistant"])
    return ChatAnswer(answers=answers, unended=unended)
