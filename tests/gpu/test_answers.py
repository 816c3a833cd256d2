"""Answers on a GPU: batches of prompts of different lengths, and between the steps of a training."""

import pytest

torch = pytest.importorskip("torch")

from bench import torch_stack  # noqa: E402 - after the skip
from bench.qlora.step import Placement, TorchSession, load_base  # noqa: E402
from bench.workloads.finetune.answers import AnswerGenerator  # noqa: E402
from bench.workloads.inference import add_adapters, prepare_model  # noqa: E402
from tests.support import tiny_training  # noqa: E402
from tests.support.gpu import on_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu, pytest.mark.usefixtures("_cuda")]
LENGTHS, LIMITS = (9, 61, 4, 33, 33, 50), (40, 3, 64, 18, 1, 30)
PAD_TOKEN = 0


class Tokenizer:
    """Tokens written as numbers."""

    pad_token_id = eos_token_id = PAD_TOKEN

    def decode(self, tokens, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(map(str, tokens))


def make_prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(6, 4000, (length,), generator=generator).tolist() for length in LENGTHS]


def answer_one(modules, model, prompt, limit):
    """The answer of transformers to one prompt."""
    settings = modules.transformers.GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=None, pad_token_id=PAD_TOKEN
    )
    ids = torch.tensor([prompt], device="cuda")
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return out[0, len(prompt) :].tolist()


def test_a_batch_has_the_tokens_of_single_prompts(tiny_model):
    modules = torch_stack.load()
    model = modules.transformers.AutoModelForCausalLM.from_pretrained(
        str(tiny_model), local_files_only=True, device_map={"": "cuda:0"}, **modules.dtype_argument(torch.float32)
    )
    prompts = make_prompts()
    answers = AnswerGenerator(modules, model, Tokenizer(), {PAD_TOKEN}).generate(prompts, LIMITS)
    for answer, prompt, limit in zip(answers, prompts, LIMITS, strict=True):
        expected = list(map(str, answer_one(modules, model, prompt, limit)))
        assert answer.text.split() == expected[: len(answer.text.split())]
        assert answer.has_ended or len(answer.text.split()) == limit


def test_an_nf4_model_with_adapters_gives_the_same_bits_again(tiny_model, make_trial):
    modules = torch_stack.load()
    placement = Placement(device=torch.device("cuda", 0), compute_dtype=torch.bfloat16)
    trial = make_trial(model=str(tiny_model), base_precision="nf4")
    model = load_base(modules, trial, placement)
    prepare_model(modules, model)
    add_adapters(TorchSession(modules=modules, placement=placement), trial, model)
    prompts, limits = make_prompts() * 8, LIMITS * 8
    generator = AnswerGenerator(modules, model, Tokenizer(), {PAD_TOKEN})
    answers = [answer.text.split() for answer in generator.generate(prompts, limits)]
    assert answers == [answer.text.split() for answer in generator.generate(prompts, limits)]
    # Greedy answers in bf16 differ from the first token that depends on rounding: most first tokens do not.
    plain = [list(map(str, answer_one(modules, model, prompt, 1))) for prompt in prompts[: len(LENGTHS)]]
    same = sum(answer[:1] == first for answer, first in zip(answers, plain, strict=False))
    assert same >= len(LENGTHS) - 2


@pytest.mark.parametrize("recipe", ["fast", "stock"])
def test_a_training_is_scored_before_and_after_its_steps(tiny_model, tmp_path, recipe):
    modules = torch_stack.load()
    settings = {"score": "contains", "evaluate_every": 1, "max_steps": 3}
    trial = tiny_training.plan(
        tiny_model, tiny_training.make_data(tmp_path / "chats.jsonl"), training=settings, recipe=recipe
    )
    placement = Placement(device=torch.device("cuda", 0), compute_dtype=torch.bfloat16)
    lab = tiny_training.Lab(modules=modules, placement=placement, trial=trial).load_inputs()
    trainer = lab.trainer(tmp_path)
    trainer.restore(None)
    assert trainer.run() == "finished"
    trainer.set_adapter(trainer.adapter()[1])
    result = trainer.score()
    assert (result.failure, len(result.measures), len(trainer.state.evaluations)) == (None, 1, 4)
