"""Conversations with an adapter as it was trained, answered greedily one after the other, to look at it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import torch_stack
from bench.adapter import lora
from bench.adapter.base_check import check_base
from bench.data.tokenizer import load_tokenizer
from bench.qlora.step import place
from bench.records import Trial
from bench.workloads.finetune import evaluate


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """`conversations`: the user's turns of each; an answer has `most` tokens at most."""

    trial: Trial
    adapter: str
    model_sha256: str | None
    conversations: list[list[str]]
    most: int


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """The answers of each conversation, and how many did not end by themselves."""

    answers: list[list[str]]
    unended: int


def ask(wish: ChatRequest, say: Callable[[str], None]) -> ChatAnswer:
    """`say` gets each answer as it comes. Raises InputError and Refused."""
    model, adapter = Path(wish.trial.model), Path(wish.adapter)
    check_base(model, adapter, wish.model_sha256)
    modules, tokenizer = torch_stack.load(), load_tokenizer(model)
    step, peft_model = lora.as_trained(modules, wish.trial, place(modules), adapter)
    found: list[list[str]] = []
    unended = 0
    for turns in wish.conversations:
        messages: list[dict[str, str]] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            text, has_ended = evaluate.answer(modules, step, peft_model, tokenizer, "chat", messages, wish.most)
            messages.append({"role": "assistant", "content": text})
            unended += not has_ended
            say(text if has_ended else f"{text} [not ended after {wish.most} tokens]")
        found.append([message["content"] for message in messages if message["role"] == "assistant"])
    return ChatAnswer(answers=found, unended=unended)
