"""What differs between versions and processors is decided in one place each."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.qlora.step import Placement, place
from bench.torch_stack import OFFLINE, Stack, load, set_environment


def stack_of(*, transformers: str = "5.0.0", cuda: bool = False) -> Stack:
    torch: Any = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda),
        device=lambda *words: words,
        set_float32_matmul_precision=lambda _: None,
        bfloat16="bf16",
        float32="f32",
    )
    nothing: Any = SimpleNamespace()
    versions: Any = SimpleNamespace(__version__=transformers)
    return Stack(torch=torch, transformers=versions, peft=nothing, bitsandbytes=nothing)


@pytest.mark.parametrize(
    ("version", "name"),
    [("4.48.3", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("5.23.0", "dtype"), ("10.0", "dtype")],
)
def test_the_weights_type_goes_by_the_name_this_version_knows(version, name):
    assert stack_of(transformers=version).dtype_argument("bf16") == {name: "bf16"}


@pytest.mark.parametrize(
    ("flags", "dtype"), [({"avx2"}, "f32"), ({"avx2", "avx512_bf16"}, "bf16"), ({"amx_bf16"}, "bf16"), (set(), "f32")]
)
def test_a_processor_computes_in_bf16_only_if_it_has_it(monkeypatch, flags, dtype):
    monkeypatch.setattr("bench.qlora.step.cpu_flags", lambda: frozenset(flags))
    assert place(stack_of()) == Placement(device=("cpu",), compute_dtype=dtype)


def test_a_gpu_comes_before_the_processor_and_computes_in_bf16(monkeypatch):
    monkeypatch.setattr("bench.qlora.step.cpu_flags", frozenset)
    assert place(stack_of(cuda=True)) == Placement(device=("cuda", 0), compute_dtype="bf16")


def test_a_trial_is_offline_and_its_waiting_threads_do_not_spin(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HF_HUB_OFFLINE": "0"})
    set_environment()
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert os.environ == {**OFFLINE, "OMP_WAIT_POLICY": "PASSIVE", **segments}


@pytest.mark.parametrize(
    "own", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"PYTORCH_CUDA_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "backend:native"}]
)
def test_a_setting_of_the_users_own_is_kept(monkeypatch, own):
    monkeypatch.setattr(os, "environ", dict(own))
    set_environment()
    assert own.items() <= os.environ.items()
    assert len({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & os.environ.keys()) == 1


def test_transformers_looks_for_names_in_its_models_files_once():
    transformers = load().transformers
    models = Path(transformers.__file__).with_name("models")
    looked = transformers.utils.import_utils.create_import_structure_from_path
    assert looked(models) is looked(str(models / "__init__.py"))
    assert "modeling_mistral" in looked(models)["mistral"][frozenset({"torch"})]
