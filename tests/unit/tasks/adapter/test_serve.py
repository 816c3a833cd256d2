"""Tests of the requests of `inv serve` to the pod and to vLLM, which follow from the training and the settings."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from bench.records.run import PlannedTrial
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.serve import stage_request, vllm_arguments
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.settings.schema import ModelSection, ServeSection

SETTINGS = Settings(root=Path("/"), model=ModelSection(path="/models/here"))


def with_trial(trained: TrainedAdapter, fleet: str = "local", **changes: object) -> TrainedAdapter:
    """Return the training with changes of its trial, over another kind of fleet."""
    (planned,) = trained.run.planned
    trial = dataclasses.replace(planned.trial, **changes)
    run = dataclasses.replace(
        trained.run,
        fleet_kind=fleet,
        planned=[PlannedTrial(trial_id=planned.trial_id, trial=trial, worker=planned.worker)],
    )
    return dataclasses.replace(trained, run=run)


def test_the_server_has_the_trainings_base_precision_tokenizer_and_rank(trained: TrainedAdapter) -> None:
    argv = vllm_arguments(SETTINGS, with_trial(trained, lora_rank=12))
    assert argv[0] == "/scratch/serve/base"
    options = dict(itertools.pairwise(argv))
    assert options["--max-lora-rank"] == "16"
    assert options["--lora-modules"] == "tuned=/scratch/serve/adapter"
    assert options["--tokenizer"] == "/scratch/serve/adapter"
    assert options["--quantization"] == "bitsandbytes"
    assert "--quantization" not in vllm_arguments(SETTINGS, with_trial(trained, base_precision="bf16"))
    own_arguments = SETTINGS.model_copy(update={"serve": ServeSection(name="mine", arguments=("--seed", "7"))})
    assert vllm_arguments(own_arguments, trained)[-2:] == ["--seed", "7"]
    assert "mine=/scratch/serve/adapter" in vllm_arguments(own_arguments, trained)
    with pytest.raises(UsageError, match=r"\b512\b.*\b1024\b"):
        vllm_arguments(SETTINGS, with_trial(trained, lora_rank=1024))


def test_the_pod_is_asked_for_the_very_base_and_adapter(trained: TrainedAdapter) -> None:
    request = stage_request(SETTINGS, trained)
    assert (request["model"], request["model_sha256"]) == ("/models/here", "m" * 64)
    assert request["adapter"] == f"/shared-data/adapters/{request['adapter_sha256']}"
    assert stage_request(SETTINGS, with_trial(trained, "pods", model="/models/there"))["model"] == "/models/there"
    relative = SETTINGS.model_copy(update={"model": ModelSection(path="models/here")})
    with pytest.raises(UsageError, match=r"model\.path: models/here"):
        stage_request(relative, trained)
