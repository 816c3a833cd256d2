"""Conversations with an adapter: each turn is answered with all earlier turns in the prompt."""

import pytest

from bench.adapter import chat
from bench.data.inputs import InputRejected

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def test_a_conversation_is_answered_turn_by_turn_by_the_trained_adapter(lab, adapter, monkeypatch):
    trial = lab(lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"), lora_alpha=8, lora_dropout=0.0).trial
    prompts, encode_prompt = [], chat.encode_prompt

    def spy(tokenizer, location, messages, special_tokens, log):
        prompts.append([dict(message) for message in messages])
        return encode_prompt(tokenizer, location, messages, special_tokens, log)

    monkeypatch.setattr(chat, "encode_prompt", spy)
    logged = []
    request = chat.ChatRequest(
        trial=trial, adapter=str(adapter), model_sha256=None, conversations=[["len?", "why?"], ["len?"]], most=4
    )
    result = chat.answer_conversations(request, logged.append)
    assert [[message["role"] for message in messages] for messages in prompts] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user"],
    ]
    (first, second), (repeated,) = result.answers
    assert first == repeated, "greedy, and a new conversation"
    assert prompts[1][1]["content"] == first
    assert [line.removesuffix(" [not ended after 4 tokens]") for line in logged] == [first, second, repeated]
    assert sum("not ended" in line for line in logged) == result.unended
    with pytest.raises(InputRejected, match="expected 000000000000"):
        chat.answer_conversations(chat.ChatRequest(**{**vars(request), "model_sha256": "0" * 64}), logged.append)
