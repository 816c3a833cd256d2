"""Differences between library versions and processors."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.qlora.step import Placement, choose_placement
from bench.torch_stack import OFFLINE, Stack, load, set_environment


def make_stack(*, transformers: str = "5.0.0", cuda: bool = False) -> Stack:
    torch: Any = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda),
        device=lambda *args: args,
        set_float32_matmul_precision=lambda _: None,
        bfloat16="bf16",
        float32="f32",
    )
    nothing: Any = SimpleNamespace()
    versions: Any = SimpleNamespace(__version__=transformers)
    return Stack(torch=torch, transformers=versions, peft=nothing, bitsandbytes=nothing)


@pytest.mark.parametrize(
    ("version", "name"),
    [("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("10.0", "dtype")],
)
def test_the_dtype_keyword_depends_on_the_version(version, name):
    assert make_stack(transformers=version).dtype_argument("bf16") == {name: "bf16"}


@pytest.mark.parametrize(
    ("cuda", "flags", "device", "dtype"),
    [
        (False, {"avx2"}, ("cpu",), "f32"),
        (False, {"avx2", "avx512_bf16"}, ("cpu",), "bf16"),
        (False, {"amx_bf16"}, ("cpu",), "bf16"),
        (True, set(), ("cuda", 0), "bf16"),
    ],
)
def test_a_gpu_is_preferred_and_a_cpu_computes_in_bf16_only_with_its_instructions(
    monkeypatch, cuda, flags, device, dtype
):
    monkeypatch.setattr("bench.qlora.step.cpu_flags", lambda: frozenset(flags))
    assert choose_placement(make_stack(cuda=cuda)) == Placement(device=device, compute_dtype=dtype)


def test_a_trial_is_offline_and_its_waiting_threads_do_not_spin(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HF_HUB_OFFLINE": "0"})
    set_environment()
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert os.environ == {**OFFLINE, "OMP_WAIT_POLICY": "PASSIVE", **segments}


@pytest.mark.parametrize(
    "variables",
    [{"OMP_WAIT_POLICY": "ACTIVE"}, {"PYTORCH_CUDA_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "backend:native"}],
)
def test_a_users_variable_is_kept(monkeypatch, variables):
    monkeypatch.setattr(os, "environ", dict(variables))
    set_environment()
    assert variables.items() <= os.environ.items()
    assert len({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & os.environ.keys()) == 1


def test_transformers_scans_its_models_files_once():
    transformers = load().transformers
    models = Path(transformers.__file__).with_name("models")
    search = transformers.utils.import_utils.create_import_structure_from_path
    assert search(models) is search(str(models / "__init__.py"))
    assert "modeling_mistral" in search(models)["mistral"][frozenset({"torch"})]
