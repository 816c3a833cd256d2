"""Conversations with an adapter: each turn is answered with all before it in the prompt."""

import pytest

from bench.adapter import chat
from bench.data.inputs import InputRejected
from bench.workloads.finetune import evaluate

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def test_a_conversation_is_answered_turn_by_turn_by_the_trained_adapter(lab, adapter, monkeypatch):
    trial = lab(lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"), lora_alpha=8, lora_dropout=0.0).trial
    seen, answer = [], evaluate.answer

    def spy(modules, step, model, tokenizer, place, messages, most):
        seen.append([dict(message) for message in messages])
        return answer(modules, step, model, tokenizer, place, messages, most)

    monkeypatch.setattr(evaluate, "answer", spy)
    said = []
    wish = chat.ChatRequest(
        trial=trial, adapter=str(adapter), model_sha256=None, conversations=[["len?", "why?"], ["len?"]], most=4
    )
    found = chat.ask(wish, said.append)
    assert [[message["role"] for message in messages] for messages in seen] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user"],
    ]
    (first, second), (again,) = found.answers
    assert first == again, "greedy, and a new conversation"
    assert seen[1][1]["content"] == first
    assert [one.removesuffix(" [not ended after 4 tokens]") for one in said] == [first, second, again]
    assert sum("not ended" in one for one in said) == found.unended
    with pytest.raises(InputRejected, match="not the model that the adapter was trained on"):
        chat.ask(chat.ChatRequest(**{**vars(wish), "model_sha256": "0" * 64}), said.append)
