"""`train.init_adapter`: what a training begins from is verified, and fits the settings, before anything is sent."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from bench.records.atomic_files import sha256_of
from bench.records.paths import ADAPTER_FOLDER, SUMS_FILE
from bench.records.run import PlannedTrial
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError
from tasks.fleet import trial_spec
from tasks.settings.layers import Settings, load
from tasks.train import init_adapter
from tests.support.reports import synthetic, training_run
from tests.unit.tasks.train.conftest import MakeSettings

WEIGHTS = b"weights"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
BASE = "b" * 64
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 16, "lora_alpha": 32, "bias": "none",
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}  # fmt: skip


def write_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


@pytest.fixture
def run_id(settings: MakeSettings) -> str:
    """A training whose adapter was collected."""
    configured, name = settings(), "20260101-000000-train"
    trial = trial_spec.make_trial(configured, 1)
    run = synthetic.record(
        run_id=name, suite="train", planned=[PlannedTrial(trial_id="train", trial=trial, worker="worker-0")]
    )
    run = dataclasses.replace(run, provenance={"inputs": {"model": {"sha256": BASE}}})
    folder = configured.results_folder / name
    write_folder(folder / ADAPTER_FOLDER)
    run.write(folder)
    dataclasses.replace(training_run.RECORD, adapter_sha256=SHA256).write(folder)
    return name


def begin(configured: Settings, model_sha256: str = BASE) -> Any:
    trial = trial_spec.make_trial(configured, 1)
    adapter = init_adapter.find_adapter(configured)
    assert adapter is not None
    return init_adapter.begin_from(adapter, trial, model_sha256, {"shared": "/runs"}).training


@pytest.mark.parametrize("name", ["{run}", "{results}/{run}", "{results}/{run}/adapter"])
def test_a_run_or_its_folder_is_the_adapter_with_its_base(name: str, run_id: str, settings: MakeSettings) -> None:
    results = settings().results_folder
    training = begin(settings(init_adapter=name.format(run=run_id, results=results)))
    assert training.init_sha256 == SHA256
    assert Path(training.init_adapter) == (results / run_id / ADAPTER_FOLDER).resolve()
    with pytest.raises(UsageError, match="another model"):
        begin(settings(init_adapter=run_id), "c" * 64)


def test_a_folder_of_peft_is_an_adapter_without_a_known_base(settings: MakeSettings, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / SUMS_FILE).write_text(f"{SHA256}  adapter_model.safetensors\n")
    configured = settings(init_adapter=str(folder))
    assert begin(configured, "c" * 64).init_sha256 == SHA256
    adapter = init_adapter.find_adapter(configured)
    assert adapter is not None
    assert "no record of its base" in init_adapter.describe(adapter)
    assert init_adapter.find_adapter(settings()) is None


def damage(folder: Path, name: str = "adapter_model.safetensors") -> None:
    (folder / name).write_bytes(b"other")


def test_another_adapter_than_the_recorded_one_is_refused(run_id: str, settings: MakeSettings, tmp_path: Path) -> None:
    damage(settings().results_folder / run_id / ADAPTER_FOLDER)
    folders = {name: write_folder(tmp_path / name) for name in ("adapter_model.safetensors", "adapter_config.json")}
    for name, folder in folders.items():
        (folder / SUMS_FILE).write_text(f"{sha256_of(folder / name)}  {name}\n")
        damage(folder, name)
    for name in (run_id, *map(str, folders.values())):
        with pytest.raises(ConfirmationRequired, match="sha256 differs"):
            init_adapter.find_adapter(settings(init_adapter=name))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"r": 8}, "r is 8, train.lora_rank is 16; set train.lora_rank"),
        ({"lora_alpha": 16}, "lora_alpha is 16, train.lora_alpha is 32"),
        ({"use_rslora": True}, "use_rslora is True, not plain LoRA"),
        ({"target_modules": ["q_proj"]}, "target_modules is q_proj, .*; set train.lora_targets"),
        ({"target_modules": ".*_proj"}, "target_modules is "),
        ({"use_dora": True}, "use_dora is True, not plain LoRA; convert"),
    ],
)
def test_an_adapter_of_another_shape_or_scale_is_refused_by_name(
    config: dict[str, Any], expected: str, settings: MakeSettings, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=expected):
        begin(settings(init_adapter=str(write_folder(tmp_path / "mine", **config))))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        lambda folder: (folder / "adapter_config.json").write_text("{"),
        lambda folder: (folder / "adapter_config.json").write_bytes(b" " * (2 << 20)),
    ],
)
def test_an_incomplete_folder_is_refused(
    change: Callable[[Path], object], settings: MakeSettings, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "mine")
    change(folder)
    with pytest.raises(TaskFailed, match=rf"^train\.init_adapter: {folder}/adapter_"):
        init_adapter.find_adapter(settings(init_adapter=str(folder)))


def test_an_unknown_run_and_a_missing_worker_are_refused(settings: MakeSettings, run_id: str) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        init_adapter.find_adapter(settings(init_adapter="20260101-000000-other"))
    with pytest.raises(UsageError, match=r"train\.init_adapter: no worker"):
        init_adapter.find_adapter(settings(init_adapter=run_id), has_worker=False)


def test_the_adapter_goes_to_the_pods_shared_volume(
    context: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "mine")
    sections = {"fleet": {"kind": "pods"}, "train": {"init_adapter": str(folder)}}
    with pytest.raises(UsageError) as refused:
        init_adapter.find_adapter(load(context(text=json.dumps(sections))))
    assert refused.value.remedy == "set cluster.volume.handle"
    volume = {"cluster": {"volume": {"handle": "10.0.0.1:/export"}}}
    adapter = init_adapter.find_adapter(load(context(text=json.dumps(sections | volume))))
    assert adapter is not None
    sent = []
    monkeypatch.setattr(init_adapter, "push", lambda agent, files, root: sent.append((agent.host.name, {*files}, root)))
    hosts: list[Any] = [SimpleNamespace(name=name, workdir="/work") for name in ("pod-0", "pod-1")]
    for job in ({"shared": "/results", "overlay": "job-4gpu"}, {"shared": "/runs"}):
        init_adapter.send(adapter, job, hosts)
    files = {"adapter_model.safetensors", "adapter_config.json"}
    assert sent == [("pod-0", files, f"/results/adapters/{SHA256}")], "on one machine it is where it is"
