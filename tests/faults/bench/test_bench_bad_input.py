"""Everything a user can hand to `python -m bench run` that cannot be run: one line, exit 2, nothing left behind.

And a machine whose GPU is there and cannot be used: the same, with the cure.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.commands import cli
from bench.data.inputs import InputError
from bench.machine import preflight
from bench.torch_stack import Stack

pytestmark = pytest.mark.usefixtures("signals_given_back")

CHAT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because it is so."}]}


def write_chats(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(count)))
    return path


@pytest.fixture
def refused(tmp_path: Path, tiny_model: Path, capsys):
    """Run a trial by flags that must be refused; returns the one line it was refused with."""

    def run(*settings: str, model: Path = tiny_model, data: Path, words: tuple[str, ...] = ()) -> str:
        argv = ["run", "--trial-name", "optimized", "--profile", "tiny", "--model", str(model), "--data", str(data)]
        for setting in settings:
            argv += ["--set", setting]
        code = cli.main([*argv, *words, "--out", str(tmp_path / "out")])
        said = capsys.readouterr()
        assert (code, said.out, said.err.count("\n")) == (2, "", 1)
        assert not (tmp_path / "out").exists()
        return str(said.err)

    return run


@pytest.fixture
def changed_model(tmp_path: Path, tiny_model: Path):
    """A copy of the small model whose configuration was changed."""

    def make(**changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return make


def test_a_model_that_is_quantized_already_is_refused_with_what_to_name_instead(refused, changed_model, tiny_data):
    model = changed_model(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    said = refused(model=model, data=tiny_data)
    assert said.startswith(f"{model / 'config.json'}: quantization_config: the weights are quantized already")
    assert "name the folder of the 16-bit original" in said


def test_an_unknown_architecture_is_refused_with_those_known(refused, changed_model, tiny_data):
    said = refused(model=changed_model(model_type="falcon"), data=tiny_data)
    assert "model_type: expected one of llama, mistral, found 'falcon'" in said


def test_fewer_samples_than_a_batch_are_refused_with_both_numbers(refused, tmp_path):
    data = write_chats(tmp_path / "few.jsonl", 7)
    said = refused(data=data)
    assert said.startswith(f"{data}: expected at least 8 usable samples (micro_batch_size), found 7; ")
    assert "micro_batch_size x world_size" in refused("kind=distributed", "world_size=4", data=data)


def test_a_trial_comes_from_a_file_or_from_flags(refused, tiny_data, tmp_path, capsys):
    said = refused(data=tiny_data, words=("--trial", "t.json"))
    assert said.startswith("--trial and --trial-name: ")
    assert said.count("\n") == 1
    out = ("--out", str(tmp_path / "out"))
    assert cli.main(["run", *out]) == 2
    assert capsys.readouterr().err.startswith("no trial: ")
    assert cli.main(["run", "--trial-name", "optimized", "--model", "M", *out]) == 2
    assert capsys.readouterr().err.startswith("--data: missing; ")
    assert cli.main(["run", "--trial", "t.json", "--set", "seed=1", *out]) == 2
    assert capsys.readouterr().err.startswith("--trial and --set: ")


def test_a_trial_that_the_suite_does_not_have_is_refused_with_those_it_has(refused, tiny_data):
    said = refused(data=tiny_data, words=("--suite", "quick", "--trial-name", "fastest"))
    assert said == "trial 'fastest' is unknown; this suite has baseline, optimized\n"


def test_a_setting_that_cannot_be_is_refused(refused, tiny_data):
    assert refused("micro_batch_size=many", data=tiny_data) == (
        "--set micro_batch_size: expected a whole number, found 'many'\n"
    )


# A machine whose GPU cannot be used -----------------------------------------------------------------------------------


def machine(
    *,
    available: bool,
    says: str = "",
    cuda: str | None = "13.0",
    library: object = None,
    file: str = "",
    version: str = "0.50.2",
) -> Stack:
    def init() -> None:
        raise RuntimeError(says)

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
    """This machine has a GPU's device file, and does not hide it."""
    path = tmp_path / "nvidiactl"
    path.touch()
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return path


@pytest.mark.parametrize(
    ("says", "cuda", "cure"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12040).\nPlease update your GPU driver",
            "13.0",
            "install a driver made for CUDA 13.0, or an image whose torch is built for an older CUDA",
        ),
        ("Torch not compiled with CUDA enabled", None, "install torch's CUDA build"),
        ("Found no NVIDIA driver on your system.", "13.0", "run the container with the NVIDIA runtime"),
        ("No CUDA GPUs are available", "13.0", "ask for one (nvidia.com/gpu: 1)"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "13.0", "needs a reboot"),
    ],
)
def test_a_gpu_that_cuda_cannot_use_is_refused_with_its_words_and_the_cure(gpu_file, make_trial, says, cuda, cure):
    with pytest.raises(InputError) as caught:
        preflight.check(machine(available=False, says=says, cuda=cuda), make_trial())
    said = str(caught.value)
    assert said.startswith(f"{gpu_file}: a GPU is here, but torch 2.11.0 cannot use it: {says.splitlines()[0][:20]}")
    assert cure in said
    assert "\n" not in said


@pytest.mark.usefixtures("gpu_file")
@pytest.mark.parametrize("chosen", ["", "-1", "NoDevFiles"])
def test_a_gpu_hidden_on_purpose_is_no_trouble(make_trial, monkeypatch, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    preflight.check(machine(available=False), make_trial())


def test_bitsandbytes_that_knows_cuda_alone_is_refused_on_the_cpu(make_trial, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path / "none")
    old = machine(available=False, version="0.43.1")
    with pytest.raises(InputError, match=r"bitsandbytes 0\.43\.1 computes on CUDA alone.*optimizer=adamw_torch"):
        preflight.check(old, make_trial())
    preflight.check(old, make_trial(base_precision="bf16", optimizer="adamw_torch"))


def test_a_machine_without_a_gpu_is_no_trouble(make_trial, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path / "none")
    preflight.check(machine(available=False), make_trial())


class CpuLibrary:
    """bitsandbytes' library as it is where it found none for this GPU."""

    compiled_with_cuda = False


class CudaLibrary(CpuLibrary):
    compiled_with_cuda = True


@pytest.mark.parametrize(("builds", "has"), [((), "no CUDA build"), (("121", "124"), "builds for CUDA 121, 124")])
def test_bitsandbytes_without_gpu_support_is_refused_with_the_builds_it_has(make_trial, tmp_path, builds, has):
    for build in builds:
        (tmp_path / f"libbitsandbytes_cuda{build}.so").touch()
    stack = machine(available=True, library=CpuLibrary(), file=str(tmp_path / "__init__.py"))
    with pytest.raises(InputError, match=f"has no GPU support for CUDA 13.0 here: it holds {has}; .*BNB_CUDA_VERSION"):
        preflight.check(stack, make_trial())
    with pytest.raises(InputError):  # the 8-bit optimizer is bitsandbytes' too
        preflight.check(stack, make_trial(base_precision="bf16"))


def test_bitsandbytes_is_not_asked_for_what_a_trial_does_not_use(make_trial, tmp_path):
    stack = machine(available=True, library=CpuLibrary(), file=str(tmp_path / "__init__.py"))
    preflight.check(stack, make_trial(base_precision="bf16", optimizer="adamw_torch"))
    preflight.check(stack, make_trial(kind="hardware"))
    preflight.check(machine(available=True, library=CudaLibrary()), make_trial())


# What must work, though it looks like bad input -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_tokenizer_without_padding_pads_with_its_end_and_says_so(changed_model, tmp_path, make_trial, measured):
    model = changed_model()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    result, said = measured(make_trial(model=str(model), data=str(write_chats(tmp_path / "chats.jsonl", 4))))
    assert "padding token" in said
    assert result.metrics is not None
    assert result.metrics.padding_percent > 0
    assert [item.name for item in result.measurements if item.name.startswith("step_")] == [
        *("step_data_sec", "step_forward_sec", "step_backward_sec", "step_optimizer_sec")
    ]
    assert json.loads((tmp_path / "out" / "environment.json").read_text())["model_sha256"]
