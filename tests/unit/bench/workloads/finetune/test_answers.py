"""Greedy answers in batches: the tokens that transformers writes for a single prompt."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from bench.data.inputs import InputError
from bench.workloads.finetune.answers import AnswerGenerator
from tests.support import tiny_training
from tests.support.small_inputs import edit_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
LENGTHS, LIMITS = (9, 31, 4, 17, 17, 26), (24, 3, 40, 18, 1, 30)


@pytest.fixture
def model(modules, lab):
    """A trained-looking peft model in float32, in evaluation mode."""
    trainer = lab().trainer(None)
    for name, parameter in trainer.peft_model.named_parameters():
        if "lora_B" in name:
            modules.torch.nn.init.normal_(parameter, std=0.5)
    return trainer.peft_model.eval()


@pytest.fixture
def prompts(modules):
    generator = modules.torch.Generator().manual_seed(3)
    return [modules.torch.randint(3, 260, (length,), generator=generator).tolist() for length in LENGTHS]


def answer_one(modules, model, prompt, limit, ends):
    settings = modules.transformers.GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=sorted(ends), pad_token_id=0
    )
    ids = modules.torch.tensor([prompt])
    with modules.torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape), generation_config=settings)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("has_static_cache", [True, False])
def test_each_answer_of_a_batch_is_the_one_of_its_prompt_alone(
    modules, lab, model, prompts, has_static_cache, monkeypatch
):
    base = model.get_base_model()
    assert type(base)._can_compile_fullgraph
    monkeypatch.setattr(type(base), "_can_compile_fullgraph", has_static_cache)
    assert ("past_key_values" in modules.cache_arguments(model, 8)) is has_static_cache
    tokenizer = lab().tokenizer
    free = [answer_one(modules, model, prompt, limit, {263}) for prompt, limit in zip(prompts, LIMITS, strict=True)]
    ends = {263, free[0][len(free[0]) // 2]}  # one that ends some answers before their limits
    expected = [answer_one(modules, model, prompt, limit, ends) for prompt, limit in zip(prompts, LIMITS, strict=True)]
    assert 0 < sum(answer[-1] in ends for answer in expected) < len(expected)

    looks = []
    generator = AnswerGenerator(modules, model, tokenizer, ends, on_step=lambda: looks.append(1))
    answers = generator.generate(prompts, LIMITS)
    assert [answer.has_ended for answer in answers] == [tokens[-1] in ends for tokens in expected]
    assert [answer.text for answer in answers] == [
        tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in expected
    ]
    assert len(looks) >= max(map(len, expected))


def test_a_batch_that_does_not_fit_in_memory_is_halved(modules, lab, model, prompts, monkeypatch):
    generator = AnswerGenerator(modules, model, lab().tokenizer, {263})
    expected, sizes = generator.generate(prompts, LIMITS), []
    real = generator._answer_batch

    def limited(prompts, limits):
        sizes.append(len(prompts))
        if len(prompts) > 4:
            raise MemoryError
        return real(prompts, limits)

    monkeypatch.setattr(generator, "_answer_batch", limited)
    assert generator.generate(prompts, LIMITS) == expected
    assert sizes == [6, 6, 4, 2]


def test_the_end_tokens_of_a_training_are_those_of_its_examples(modules, tiny_inputs, tmp_path):
    folder = Path(shutil.copytree(tiny_inputs[0], tmp_path / "model"))
    edit_json(folder / "tokenizer_config.json", eos_token="<s>")  # the template ends answers with <|im_end|>
    trial = tiny_training.plan(folder, tiny_inputs[1])
    lab = tiny_training.Lab.create(modules, trial).load_inputs()
    assert lab.material.end_tokens == [lab.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    data = dataclasses.replace(lab.material.training.data, labels="all")
    training = dataclasses.replace(lab.material.training, data=data)
    assert dataclasses.replace(lab.material, training=training).end_tokens == []


def test_without_prompts_or_end_tokens(modules, lab, model):
    assert AnswerGenerator(modules, model, lab().tokenizer, {263}).generate([], []) == []
    with pytest.raises(InputError):
        AnswerGenerator(modules, model, lab().tokenizer, set())
