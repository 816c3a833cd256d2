"""Tests of the requests of `inv serve` to the pod and to vLLM, which follow from the training and the settings."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from bench.records.run import PlannedTrial
from remote.cluster.diagnosis.pods import diagnose_job
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.serve import (
    adapter_files,
    merge_command,
    merged_arguments,
    merged_files,
    stage_request,
    vllm_arguments,
)
from tasks.errors import UsageError
from tasks.settings.layers import Settings
from tasks.settings.sections import ModelSection, ServeSection
from tests.unit.tasks.adapter.conftest import SHA256, adapter_check, save_check

SETTINGS = Settings(root=Path("/"), model=ModelSection(path="/models/here"))


def with_trial(trained: TrainedAdapter, fleet: str = "local", **changes: object) -> TrainedAdapter:
    """Return the training with changes of its trial, over another kind of fleet."""
    (planned,) = trained.run.planned
    trial = dataclasses.replace(planned.trial, **changes)
    run = dataclasses.replace(
        trained.run,
        fleet_kind=fleet,
        is_on_one_machine=fleet == "local",
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
    own_arguments = dataclasses.replace(SETTINGS, serve=ServeSection(name="mine", arguments=("--seed", "7")))
    assert vllm_arguments(own_arguments, trained)[-2:] == ["--seed", "7"]
    assert "mine=/scratch/serve/adapter" in vllm_arguments(own_arguments, trained)
    with pytest.raises(UsageError, match=r"\b512\b.*\b1024\b"):
        vllm_arguments(SETTINGS, with_trial(trained, lora_rank=1024))


def test_the_pod_is_asked_for_the_very_base_and_adapter(trained: TrainedAdapter) -> None:
    files = adapter_files(trained)
    request = stage_request(SETTINGS, trained, files)
    assert (request["model"], request["model_sha256"]) == ("/models/here", "m" * 64)
    assert request["adapter"] == files.in_pod == f"/shared-data/adapters/{request['adapter_sha256']}"
    over_pods = with_trial(trained, "pods", model="/models/there")
    assert stage_request(SETTINGS, over_pods, files)["model"] == "/models/there"
    relative = dataclasses.replace(SETTINGS, model=ModelSection(path="models/here"))
    with pytest.raises(UsageError, match=r"model\.path: models/here"):
        stage_request(relative, trained, files)


def write_merged(trained: TrainedAdapter, path: str) -> None:
    trained.write_merged(path, {"adapter_sha256": SHA256, "base": "nf4"})


def test_a_merged_model_is_sent_from_here_or_read_from_the_volume(trained: TrainedAdapter, tmp_path: Path) -> None:
    relative = dataclasses.replace(SETTINGS, model=ModelSection(path="models/here"))
    folder = tmp_path / "merged"
    folder.mkdir()
    (folder / "SHA256SUMS").write_text("...\n")
    write_merged(trained, str(folder))
    files = merged_files(trained)
    assert (files.local, files.is_merged) == (folder, True)
    assert Path(files.in_pod).parent == Path("/shared-data/merged")
    request = stage_request(relative, trained, files)
    assert (request["model"], request["adapter"], request["adapter_sha256"]) == (files.in_pod, None, SHA256)
    assert "wait_sec" not in request
    over_pods = with_trial(trained, "pods")
    write_merged(over_pods, "/shared-data/m")
    files = merged_files(over_pods)
    assert (files.local, files.in_pod) == (None, "/shared-data/m")
    assert stage_request(relative, over_pods, files)["wait_sec"] == 0.0, "it must be there"
    argv = merged_arguments(SETTINGS)
    assert dict(itertools.pairwise(argv))["--served-model-name"] == "tuned"
    assert not {"--quantization", "--enable-lora", "--tokenizer"} & set(argv)


def test_the_remedy_of_a_failed_server_is_the_command_that_deployed_it(trained: TrainedAdapter) -> None:
    for arguments, command in (
        (vllm_arguments(SETTINGS, trained), "`inv serve --run=r`"),
        (merged_arguments(SETTINGS), "`inv serve --merged --run=r`"),
    ):
        job = {
            "kind": "Job",
            "metadata": {"name": "serve", "annotations": {"qlora-fleet/serves": "r"}},
            "spec": {"template": {"spec": {"containers": [{"name": "vllm", "args": arguments}]}}},
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]},
        }
        (finding,) = diagnose_job(job, [])
        assert command in finding.remedy


@pytest.mark.parametrize("path", ["/workspace/out", "/shared-data/../etc"])
def test_a_merged_model_off_the_volume_is_refused(trained: TrainedAdapter, path: str) -> None:
    over_pods = with_trial(trained, "pods")
    write_merged(over_pods, path)
    with pytest.raises(UsageError) as refusal:
        merged_files(over_pods)
    assert "--out=/shared-data/merged/r" in refusal.value.remedy


def test_the_command_that_serves_the_merged_model_has_the_steps_that_are_missing(trained: TrainedAdapter) -> None:
    with pytest.raises(UsageError) as refusal:
        merged_files(trained)
    assert merge_command(trained) in refusal.value.remedy
    assert merge_command(trained) == (
        "inv adapter.check --run=r adapter.merge --run=r --base=nf4 serve --merged --run=r"
    )
    save_check(trained, adapter_check())
    assert merge_command(trained) == "inv adapter.merge --run=r --base=nf4 serve --merged --run=r"
    write_merged(with_trial(trained, "pods"), "/shared-data/m")
    assert merge_command(with_trial(trained, "pods")) == "inv serve --merged --run=r"
