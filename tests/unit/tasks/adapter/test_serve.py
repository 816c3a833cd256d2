"""What `inv serve` asks of the pod and of vLLM: from the training and the settings alone."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from bench.records.run import PlannedTrial
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.serve import arguments, request
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.settings.schema import ModelSection, ServeSection

SETTINGS = Settings(root=Path("/"), model=ModelSection(path="/models/here"))


def of(trained: TrainedAdapter, fleet: str = "local", **changes: object) -> TrainedAdapter:
    """The training with another trial, over another kind of fleet."""
    (planned,) = trained.run.planned
    trial = dataclasses.replace(planned.trial, **changes)
    run = dataclasses.replace(
        trained.run,
        fleet_kind=fleet,
        planned=[PlannedTrial(trial_id=planned.trial_id, trial=trial, worker=planned.worker)],
    )
    return dataclasses.replace(trained, run=run)


def test_the_server_has_the_trainings_base_precision_tokenizer_and_rank(trained: TrainedAdapter) -> None:
    words = arguments(SETTINGS, of(trained, lora_rank=12))
    assert words[0] == "/scratch/serve/base"
    given = dict(itertools.pairwise(words))
    assert given["--max-lora-rank"] == "16"
    assert given["--lora-modules"] == "tuned=/scratch/serve/adapter"
    assert given["--tokenizer"] == "/scratch/serve/adapter"
    assert given["--quantization"] == "bitsandbytes"
    assert "--quantization" not in arguments(SETTINGS, of(trained, base_precision="bf16"))
    more = SETTINGS.model_copy(update={"serve": ServeSection(name="mine", arguments=("--seed", "7"))})
    assert arguments(more, trained)[-2:] == ["--seed", "7"]
    assert "mine=/scratch/serve/adapter" in arguments(more, trained)
    with pytest.raises(UsageError, match="of rank 512 at most, not 1024"):
        arguments(SETTINGS, of(trained, lora_rank=1024))


def test_the_pod_is_asked_for_the_very_base_and_adapter(trained: TrainedAdapter) -> None:
    asked = request(SETTINGS, trained)
    assert (asked["model"], asked["model_sha256"]) == ("/models/here", "m" * 64)
    assert asked["adapter"] == f"/shared-data/adapters/{asked['adapter_sha256']}"
    assert request(SETTINGS, of(trained, "pods", model="/models/there"))["model"] == "/models/there"
    relative = SETTINGS.model_copy(update={"model": ModelSection(path="models/here")})
    with pytest.raises(UsageError, match="expected an absolute path, as the server's pod sees it"):
        request(relative, trained)
