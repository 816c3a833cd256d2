"""Staging for a server: base and adapter are verified by digest and placed where its container can read them."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.adapter import stage
from bench.adapter.stage import StageRequest, stage_adapter
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from bench.records import schema
from bench.records.adapter import BaseRecord, MergeFacts
from bench.records.checksummed import ResultError
from tests.model_shapes import tensors
from tests.support.small_inputs import CONFIG, write_model, write_weights

WEIGHTS = b"weights"


def write_sums(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def stage_request(tmp_path: Path) -> Callable[..., StageRequest]:
    """Requests for a model and an adapter that has arrived, with some fields changed."""
    model = write_model(tmp_path / "image" / "org--base")
    adapter = tmp_path / "volume" / "adapters" / "a"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    (adapter / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    BaseRecord(tensors={}, adapters=["model.layers.0.self_attn.q_proj"]).write(adapter)
    write_sums(adapter)

    def make(**changes: object) -> StageRequest:
        fields = {
            "model": str(model), "model_sha256": check_model(model).sha256, "adapter": str(adapter),
            "adapter_sha256": hashlib.sha256(WEIGHTS).hexdigest(), "into": str(tmp_path / "into"),
            "volumes": [str(tmp_path / "volume")],
        }  # fmt: skip
        return StageRequest(**(fields | changes))  # type: ignore[arg-type]

    return make


def test_a_base_of_this_image_is_copied_once_and_one_of_a_volume_is_used_where_it_is(
    stage_request: Callable[..., StageRequest], tmp_path: Path
) -> None:
    logged: list[str] = []
    layout = stage_adapter(stage_request(), logged.append)
    stage_adapter(stage_request(), logged.append)
    (line,) = logged
    assert str(tmp_path / "image" / "org--base") in line
    assert check_model(Path(layout.base)).sha256 == stage_request().model_sha256
    assert (Path(layout.adapter) / "adapter_model.safetensors").read_bytes() == WEIGHTS
    on_volume = stage_adapter(stage_request(volumes=[str(tmp_path)], into=str(tmp_path / "other")), logged.append)
    assert Path(on_volume.base).is_symlink()
    assert len(logged) == 1


def test_another_base_template_or_adapter_is_refused(stage_request: Callable[..., StageRequest]) -> None:
    with pytest.raises(InputRejected, match="expected 000000000000"):
        stage_adapter(stage_request(model_sha256="0" * 64), print)
    with pytest.raises(InputRejected, match=r"adapter_model\.safetensors: .*; remove the folder"):
        stage_adapter(stage_request(adapter_sha256="0" * 64), print)
    adapter = Path(stage_request().adapter)
    (adapter / "adapter_config.json").write_text('{"r": 1}')
    with pytest.raises((InputError, ResultError), match=r"adapter_config\.json: .*; remove "):
        stage_adapter(stage_request(), print)
    (adapter / "SHA256SUMS").unlink()
    write_sums(adapter)
    with pytest.raises(ResultError, match="peft_type is missing, not plain LoRA"):
        stage_adapter(stage_request(), print)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    (adapter / "tokenizer.json").write_text("another")
    (adapter / "SHA256SUMS").unlink()
    write_sums(adapter)
    with pytest.raises(InputRejected, match=r"tokenizer\.json: .*; restore it from"):
        stage_adapter(stage_request(), print)


def test_an_adapter_of_the_text_part_of_a_model_with_images_is_refused(
    stage_request: Callable[..., StageRequest],
) -> None:
    config = Path(stage_request().model) / "config.json"
    config.write_text(json.dumps({"model_type": "mistral3", "text_config": json.loads(config.read_text())}))
    names = {f"language_model.{name}": shape for name, shape in tensors(CONFIG).items()}
    write_weights(config.with_name("model.safetensors"), names)
    with pytest.raises(InputError, match="the adapter is of its text part") as caught:
        stage_adapter(stage_request(), print)
    assert caught.value.remedy == "inv adapter.merge, then inv serve --merged"


def test_staging_waits_for_the_adapters_last_file(
    stage_request: Callable[..., StageRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Path(stage_request().adapter) / "SHA256SUMS"
    sums = last.read_text()
    last.unlink()
    # Replace the module's reference only: other threads call time.sleep too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: last.write_text(sums))
    monkeypatch.setattr(stage, "time", clock)
    logged: list[str] = []
    stage_adapter(stage_request(), logged.append)
    assert str(last.parent) in logged[0]
    last.unlink()
    with pytest.raises(InputError, match="; rerun `inv serve`"):
        stage_adapter(stage_request(wait_sec=-1.0), logged.append)


@pytest.fixture
def merged_request(tmp_path: Path) -> StageRequest:
    """Request for a merged model on the volume."""
    folder = write_model(tmp_path / "volume" / "merged")
    facts = MergeFacts(base="nf4", model_sha256="b" * 64, adapter_sha256="a" * 64, end_ids=[], shards=1, bytes=1)
    (folder / "merge.json").write_text(json.dumps(schema.to_json(facts)))
    write_sums(folder)
    return StageRequest(
        model=str(folder), model_sha256="b" * 64, adapter=None, adapter_sha256="a" * 64,
        into=str(tmp_path / "into"), volumes=[str(tmp_path / "volume")], wait_sec=0.0,
    )  # fmt: skip


def test_a_merged_model_is_verified_and_staged_without_an_adapter(merged_request: StageRequest) -> None:
    layout = stage_adapter(merged_request, print)
    assert Path(layout.base).resolve() == Path(merged_request.model)
    assert layout.adapter is None
    with pytest.raises(InputRejected, match="adapter_sha256"):
        stage_adapter(dataclasses.replace(merged_request, adapter_sha256="c" * 64), print)
    with pytest.raises(InputRejected, match="model_sha256"):
        stage_adapter(dataclasses.replace(merged_request, model_sha256="c" * 64), print)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "merge.json", "SHA256SUMS"])
def test_a_damaged_or_missing_file_of_a_merged_model_is_refused(merged_request: StageRequest, name: str) -> None:
    path = Path(merged_request.model, name)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    with pytest.raises(InputError):
        stage_adapter(merged_request, print)
    path.unlink()
    with pytest.raises(InputError):
        stage_adapter(merged_request, print)
