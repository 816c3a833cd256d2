"""Invalid input of `python -m bench run`: one line, exit 2, no files left.

A machine whose GPU cannot be used: the same, with a remedy.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.commands import cli
from bench.data.inputs import InputError
from bench.machine import preflight
from bench.torch_stack import Stack

pytestmark = pytest.mark.usefixtures("restored_signals")

CHAT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because it is so."}]}


def write_chats(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(count)))
    return path


@pytest.fixture
def rejection(bench_environment, bench_server, tmp_path: Path, tiny_model: Path):
    """Return a function that runs a trial which must be rejected, and returns the line that it prints."""

    def run(*settings: str, model: Path = tiny_model, data: Path, flags: tuple[str, ...] = ()) -> str:
        argv = ["run", "--trial-name", "optimized", "--profile", "tiny", "--model", str(model), "--data", str(data)]
        for setting in settings:
            argv += ["--set", setting]
        argv += [*flags, "--out", str(tmp_path / "out")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with bench_server.start("-m", "bench", *argv, env=bench_environment, **pipes) as process:
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, output, errors.count("\n")) == (2, "", 1)
        assert not (tmp_path / "out").exists()
        return errors

    return run


@pytest.fixture
def changed_model(tmp_path: Path, tiny_model: Path):
    """Return a function that copies the small model and changes its configuration."""

    def make(**changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return make


def test_fewer_samples_than_a_batch_are_rejected_with_both_numbers(rejection, tmp_path):
    data = write_chats(tmp_path / "few.jsonl", 7)
    message = rejection(data=data)
    assert re.match(rf"{data}: .* 8 .*\(micro_batch_size\), found 7; ", message)
    assert "micro_batch_size x world_size" in rejection("kind=distributed", "world_size=4", data=data)


def test_a_trial_comes_either_from_a_file_or_from_flags(rejection, tiny_data, tmp_path, capsys):
    message = rejection(data=tiny_data, flags=("--trial", "t.json"))
    assert message.startswith("--trial and --trial-name: ")
    out = ("--out", str(tmp_path / "out"))
    assert cli.main(["run", *out]) == 2
    assert capsys.readouterr().err.startswith("no trial: ")
    assert cli.main(["run", "--trial-name", "optimized", "--model", "M", *out]) == 2
    assert capsys.readouterr().err.startswith("--data: missing; ")
    assert cli.main(["run", "--trial", "t.json", "--set", "seed=1", *out]) == 2
    assert capsys.readouterr().err.startswith("--trial and --set: ")


def test_an_unknown_trial_is_rejected_with_those_of_the_suite(rejection, tiny_data):
    message = rejection(data=tiny_data, flags=("--suite", "quick", "--trial-name", "fastest"))
    assert "'fastest'" in message
    assert message.endswith(" baseline, optimized, train\n")


# A machine whose GPU cannot be used -----------------------------------------------------------------------------------


def fake_stack(
    *,
    available: bool,
    error: str = "",
    cuda: str | None = "13.0",
    library: object = None,
    file: str = "",
    version: str = "0.50.2",
) -> Stack:
    def init() -> None:
        raise RuntimeError(error)

    torch: Any = SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: available, init=init, get_device_capability=lambda: (8, 6)),
    )
    bitsandbytes: Any = SimpleNamespace(__version__=version, __file__=file, cextension=SimpleNamespace(lib=library))
    nothing: Any = SimpleNamespace()
    return Stack(torch=torch, transformers=nothing, peft=nothing, bitsandbytes=bitsandbytes)


@pytest.fixture
def gpu_file(tmp_path: Path, monkeypatch) -> Path:
    """Give this machine a visible GPU's device file."""
    path = tmp_path / "nvidiactl"
    path.touch()
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return path


@pytest.mark.parametrize(
    ("error", "cuda", "remedy"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12040).\nPlease update your GPU driver",
            "13.0",
            "CUDA 13.0",
        ),
        ("Torch not compiled with CUDA enabled", None, "CUDA build"),
        ("Found no NVIDIA driver on your system.", "13.0", "NVIDIA runtime"),
        ("No CUDA GPUs are available", "13.0", "nvidia.com/gpu: 1"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "13.0", "reboot"),
    ],
)
def test_a_gpu_that_cuda_cannot_use_is_rejected_with_the_error_and_a_remedy(gpu_file, make_trial, error, cuda, remedy):
    with pytest.raises(InputError) as caught:
        preflight.check(fake_stack(available=False, error=error, cuda=cuda), make_trial())
    message = str(caught.value)
    assert message.startswith(f"{gpu_file}: ")
    assert "torch 2.11.0" in message
    assert error.splitlines()[0][:20] in message
    assert remedy in message.partition("; ")[2]
    assert "\n" not in message


@pytest.mark.usefixtures("gpu_file")
@pytest.mark.parametrize("chosen", ["", "-1", "NoDevFiles"])
def test_a_gpu_hidden_on_purpose_is_accepted(make_trial, monkeypatch, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    preflight.check(fake_stack(available=False), make_trial())


def test_bitsandbytes_without_cpu_kernels_is_rejected_on_the_cpu(make_trial, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path / "none")
    old = fake_stack(available=False, version="0.43.1")
    with pytest.raises(InputError, match=r"bitsandbytes 0\.43\.1 .*optimizer=adamw_torch"):
        preflight.check(old, make_trial())
    preflight.check(old, make_trial(base_precision="bf16", optimizer="adamw_torch"))


def test_a_machine_without_a_gpu_is_accepted(make_trial, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path / "none")
    preflight.check(fake_stack(available=False), make_trial())


class CpuLibrary:
    """A fake of bitsandbytes' library when it has no build for this GPU."""

    compiled_with_cuda = False


class CudaLibrary(CpuLibrary):
    compiled_with_cuda = True


@pytest.mark.parametrize(("builds", "listed"), [((), "no CUDA build"), (("121", "124"), "CUDA 121, 124")])
def test_bitsandbytes_without_gpu_support_is_rejected_with_its_builds(make_trial, tmp_path, builds, listed):
    for build in builds:
        (tmp_path / f"libbitsandbytes_cuda{build}.so").touch()
    stack = fake_stack(available=True, library=CpuLibrary(), file=str(tmp_path / "__init__.py"))
    with pytest.raises(InputError, match=rf"CUDA 13\.0 .*{listed}; .*BNB_CUDA_VERSION"):
        preflight.check(stack, make_trial())
    with pytest.raises(InputError):  # the 8-bit optimizer needs bitsandbytes too
        preflight.check(stack, make_trial(base_precision="bf16"))


def test_bitsandbytes_is_only_checked_for_features_that_the_trial_uses(make_trial, tmp_path):
    stack = fake_stack(available=True, library=CpuLibrary(), file=str(tmp_path / "__init__.py"))
    preflight.check(stack, make_trial(base_precision="bf16", optimizer="adamw_torch"))
    preflight.check(stack, make_trial(kind="hardware"))
    preflight.check(fake_stack(available=True, library=CudaLibrary()), make_trial())


# Unusual but valid input ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tokenizer_without_padding_pads_with_its_end_token(changed_model, tmp_path, make_trial, run_trial):
    model = changed_model()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    result, log = run_trial(make_trial(model=str(model), data=str(write_chats(tmp_path / "chats.jsonl", 4))))
    assert "padding token" in log
    assert result.metrics is not None
    assert result.metrics.padding_percent > 0
    assert [item.name for item in result.measurements if item.name.startswith("step_")] == [
        *("step_data_sec", "step_forward_sec", "step_backward_sec", "step_optimizer_sec")
    ]
    assert json.loads((tmp_path / "out" / "environment.json").read_text())["model_sha256"]
