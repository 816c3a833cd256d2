"""The forms of an adapter compared with each other, on a model of two layers."""

import dataclasses
import json
import shutil
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.adapter import check, lora, merge
from bench.data.inputs import InputError, InputRejected
from bench.data.masking import Example
from bench.data.model_folder import check_model
from bench.workloads.finetune import answers
from bench.workloads.finetune.checkpoint_manager import adapter_config

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]


def test_a_prompt_is_an_examples_beginning_and_its_last_answer_is_the_reference():
    example = Example(file="a", line="line 3", ids=array("I", [9, 8, 7, 6, 5, 4]), targets=bytes([0, 1, 0, 0, 1, 1]))
    (case,) = answers.prompt_cases([example], 4)
    assert (case.prompt, case.reference) == ([9, 8, 7, 6], [5, 4])
    assert case.max_tokens == answers.MIN_LIMIT_TOKENS


def test_the_base_in_adapter_config_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "m").mkdir(parents=True)
    for base, written in (("models/m", str(tmp_path / "models" / "m")), ("org/name", "org/name"), (None, None)):
        config = SimpleNamespace(to_dict=lambda base=base: {"base_model_name_or_path": base, "r": 4})
        text = adapter_config(SimpleNamespace(peft_config={"default": config}))
        assert json.loads(text) == {"base_model_name_or_path": written, "r": 4, "inference_mode": True}


def test_a_base_that_does_not_fit_the_gpu_in_16_bits_is_refused_before_it_is_loaded(lab, adapter, monkeypatch):
    monkeypatch.setattr(check, "device_memory", lambda *_: 100_000)
    with pytest.raises(InputError, match=r"GB in 16 bits, .* the GPU has 0\.0 GB"):
        check.Checker(check.CheckRequest(trial=lab().trial, adapter=str(adapter)), lambda _: None, None)


@pytest.mark.usefixtures("short_answers")
def test_every_form_is_measured_and_the_merged_folder_is_the_merge_in_memory(lab, adapter, merge_fields):
    trial = lab().trial
    facts = merge.merge(merge.MergeRequest(**merge_fields(base="nf4")), lambda _: None)
    request = check.CheckRequest(trial=trial, adapter=str(adapter), merged=merge_fields()["out"], answers=2)
    report = check.Checker(request, lambda _: None, None).run()
    forms = {form.name: form for form in report.forms}
    assert list(forms) == ["trained", "bf16", "merged-bf16", "merged-nf4", "folder"]
    assert forms["trained"].change is None
    assert forms["folder"].loss == pytest.approx(forms["merged-nf4"].loss, abs=1e-6)
    assert forms["folder"].answers == forms["merged-nf4"].answers
    # Equal weights, except for bf16's rounding of the merged ones.
    assert forms["merged-nf4"].loss == pytest.approx(forms["trained"].loss, abs=0.02)
    assert forms["merged-bf16"].loss == pytest.approx(forms["bf16"].loss, abs=0.02)
    assert abs(forms["bf16"].loss - forms["trained"].loss) > 1e-4, "NF4 is another base"
    assert all(str(question).startswith("What is ") for question in report.questions)
    assert set(report.end_ids) <= set(facts.end_ids)
    assert len(report.losses) == len(report.examples) == len(report.targets)
    assert sum(report.losses) / sum(report.targets) == pytest.approx(forms["trained"].loss)

    settings = Path(merge_fields()["out"]) / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": 3}))  # a server would end answers at another token
    (Path(merge_fields()["out"]) / "SHA256SUMS").unlink()
    checker = check.Checker(request, lambda _: None, None)
    _, folder_answers = checker._measure_plain(checker._load_plain(Path(merge_fields()["out"])), [3])
    assert answers.end_tokens_of(checker._load_plain(Path(merge_fields()["out"]))) == [3]
    assert not any(has_ended for _, has_ended in folder_answers)
    with pytest.raises(InputRejected, match="expected 000000000000"):
        check.Checker(dataclasses.replace(request, model_sha256="0" * 64), lambda _: None, None)


def test_without_held_out_data_nothing_can_be_compared(lab, adapter):
    trial = lab(training={"evaluate_every": 0}).trial
    data = dataclasses.replace(trial.training.data, validation_share=0.0)
    trial = dataclasses.replace(trial, training=dataclasses.replace(trial.training, data=data))
    with pytest.raises(InputError, match=r"train\.validation_fraction"):
        check.Checker(check.CheckRequest(trial=trial, adapter=str(adapter)), lambda _: None, None)


def test_an_adapter_with_a_template_of_the_training_fits_its_base(inputs, adapter, tmp_path):
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    model = tmp_path / "model"
    shutil.copytree(inputs[0], model)
    for folder, text in ((model, "{{ messages }}"), (own, "own")):
        (folder / "chat_template.jinja").write_text(text)
    digest = check_model(model).sha256
    lora.check_base(model, own, digest)
    for other in (None, "0" * 64):
        with pytest.raises(InputRejected, match=r"chat_template\.jinja: changed"):
            lora.check_base(model, own, other)


def test_questions_are_answered_by_the_trained_adapter(lab, adapter):
    trial = lab().trial
    fields = {"trial": trial, "adapter": str(adapter), "model_sha256": None, "most": 4, "end_ids": []}
    logged = []
    result = check.answer_questions(check.ChatRequest(**fields, questions=["len?", "why?", "len?"]), logged.append)
    assert len(logged) == 3
    assert logged[0] == logged[2]
    assert sum("not ended" in line for line in logged) == result["unended"]
    with pytest.raises(InputError, match=r"chat: .* the model takes 512"):
        check.answer_questions(check.ChatRequest(**fields, questions=["len?" * 200]), logged.append)
