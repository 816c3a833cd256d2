"""The forms of an adapter beside each other, on a model of two layers."""

import dataclasses
import json
from array import array
from pathlib import Path

import pytest

from bench.adapter import check, generation, merge
from bench.data.inputs import InputError, InputRejected
from bench.train.masking import Example
from bench.workloads.finetune import evaluate

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def test_a_question_is_an_examples_beginning_and_its_last_answer_the_known_one():
    example = Example(file="a", line=3, ids=array("I", [9, 8, 7, 6, 5, 4]), targets=bytes([0, 1, 0, 0, 1, 1]))
    (asked,) = generation.questions([example], 4)
    assert (asked.prompt, asked.known, asked.end) == ([9, 8, 7, 6], [5, 4], 4)
    assert asked.limit == generation.LEAST_TOKENS


@pytest.mark.slow
def test_every_form_is_measured_and_the_merged_folder_is_the_merge_in_memory(lab, adapter, wish):
    trial = lab(lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"), lora_alpha=8, lora_dropout=0.0).trial
    facts = merge.merge(merge.MergeRequest(**wish(base="nf4")), lambda _: None)
    asked = check.CheckRequest(trial=trial, adapter=str(adapter), merged=wish()["out"], answers=2)
    found = check.Checker(asked, lambda _: None, None).run()
    forms = {form.name: form for form in found.forms}
    assert list(forms) == ["trained", "bf16", "merged-bf16", "merged-nf4", "folder"]
    assert forms["trained"].change is None
    assert forms["folder"].loss == pytest.approx(forms["merged-nf4"].loss, abs=1e-6)
    assert forms["folder"].answers == forms["merged-nf4"].answers
    # The same weights, but for bf16's rounding of the merged ones.
    assert forms["merged-nf4"].loss == pytest.approx(forms["trained"].loss, abs=0.02)
    assert forms["merged-bf16"].loss == pytest.approx(forms["bf16"].loss, abs=0.02)
    assert abs(forms["bf16"].loss - forms["trained"].loss) > 1e-4, "NF4 is another base"
    assert set(found.end_ids) <= set(facts.end_ids)
    assert len(found.losses) == len(found.examples) == len(found.targets)
    assert sum(found.losses) / sum(found.targets) == pytest.approx(forms["trained"].loss)

    settings = Path(wish()["out"]) / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": 3}))  # a server would end answers at another token
    (Path(wish()["out"]) / "SHA256SUMS").unlink()
    checker = check.Checker(asked, lambda _: None, None)
    _, given = checker._plain(checker._loaded(Path(wish()["out"])), [3])
    assert evaluate.ends_of(checker._loaded(Path(wish()["out"]))) == [3]
    assert not any(has_ended for _, has_ended in given)
    with pytest.raises(InputRejected, match="not the model that the adapter was trained on"):
        check.Checker(dataclasses.replace(asked, model_sha256="0" * 64), lambda _: None, None)


def test_without_held_out_data_nothing_can_be_compared(lab, adapter):
    trial = lab(training={"evaluate_every": 0}).trial
    data = dataclasses.replace(trial.training.data, validation_share=0.0)
    trial = dataclasses.replace(trial, training=dataclasses.replace(trial.training, data=data))
    with pytest.raises(InputError, match="no data was held out"):
        check.Checker(check.CheckRequest(trial=trial, adapter=str(adapter)), lambda _: None, None)
