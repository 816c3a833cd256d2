"""A server's base and adapter, laid out: each by its digest, where the server's container can see it."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.adapter import stage
from bench.adapter.stage import StageRequest, stage_adapter
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from tests.support.small_inputs import write_model

WEIGHTS = b"weights"


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., StageRequest]:
    """A model and an adapter that has come; some fields of the request changed."""
    model = write_model(tmp_path / "image" / "org--base")
    adapter = tmp_path / "volume" / "adapters" / "a"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (adapter / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (adapter / "SHA256SUMS").write_text("...\n")

    def wish(**changes: object) -> StageRequest:
        fields = {
            "model": str(model), "model_sha256": check_model(model).sha256, "adapter": str(adapter),
            "adapter_sha256": hashlib.sha256(WEIGHTS).hexdigest(), "into": str(tmp_path / "into"),
            "volumes": [str(tmp_path / "volume")],
        }  # fmt: skip
        return StageRequest(**(fields | changes))  # type: ignore[arg-type]

    return wish


def test_a_base_of_this_image_is_copied_once_and_one_of_a_volume_is_used_where_it_is(
    asked: Callable[..., StageRequest], tmp_path: Path
) -> None:
    said: list[str] = []
    laid = stage_adapter(asked(), said.append)
    stage_adapter(asked(), said.append)
    assert said == [f"copying {tmp_path / 'image' / 'org--base'} for the server"]
    assert check_model(Path(laid.base)).sha256 == asked().model_sha256
    assert (Path(laid.adapter) / "adapter_model.safetensors").read_bytes() == WEIGHTS
    on_volume = stage_adapter(asked(volumes=[str(tmp_path)], into=str(tmp_path / "other")), said.append)
    assert Path(on_volume.base).is_symlink()
    assert len(said) == 1


def test_another_base_template_or_adapter_is_refused(asked: Callable[..., StageRequest]) -> None:
    with pytest.raises(InputRejected, match="not the model that the adapter was trained on"):
        stage_adapter(asked(model_sha256="0" * 64), print)
    with pytest.raises(InputRejected, match="its sha256 is not that of the training"):
        stage_adapter(asked(adapter_sha256="0" * 64), print)
    (Path(asked().adapter) / "tokenizer.json").write_text("another")
    with pytest.raises(InputRejected, match="changed since the training"):
        stage_adapter(asked(), print)


def test_an_adapter_that_comes_is_waited_for_until_its_last_file(
    asked: Callable[..., StageRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Path(asked().adapter) / "SHA256SUMS"
    last.unlink()
    # Not the module's own sleep: other threads sleep too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: last.write_text("...\n"))
    monkeypatch.setattr(stage, "time", clock)
    said: list[str] = []
    stage_adapter(asked(), said.append)
    assert said[0].startswith(f"waiting for {last.parent}")
    last.unlink()
    with pytest.raises(InputError, match="nobody has sent the adapter; type `inv serve` again"):
        stage_adapter(asked(wait_sec=-1.0), said.append)
