"""image/torch.sh and the Dockerfile's lines around it, with fake build tools.

Each tool is a script that records its arguments; "git clone" creates a source tree, "pip wheel" a wheel. Not covered,
because it needs a CUDA compiler: that torch builds, that its libraries find the lock's CUDA at run time, the duration
and the savings in size.
"""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

IMAGE = ROOT / "image"
WHEEL = "torch-2.10.0-cp312-cp312-linux_x86_64.whl"
COMMIT = "c0ffee" * 6 + "c0ff"
GIT = f"""case "$*" in
*clone*) for folder; do :; done; mkdir -p "$folder"; touch "$folder/requirements-build.txt" ;;
*rev-parse*) echo {COMMIT} ;;
*log*) echo 1700000000 ;;
esac"""
PYTHON = f"""case "$*" in
*purelib*) echo "$TREE/packages" ;;
*"setup.py build"*)
    for option in USE_CUDA USE_CUDNN USE_NCCL; do
        [ "$option" != "${{TURNED_OFF:-}}" ] && echo "--   $option             : ON" || echo "--   $option   : OFF"
    done ;;
*"pip wheel"*)
    env > "$TREE/env"
    for word; do [ "$before" != --wheel-dir ] || touch "$word/${{MADE:-{WHEEL}}}"; before=$word; done ;;
*"zipfile -e"*) for folder; do :; done; mkdir -p "$folder/torch/lib"; touch "$folder/torch/lib/libtorch_cuda.so" ;;
*"wheel pack"*) echo packed > "$5/{WHEEL}" ;;
esac"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in ("cudnn", "nccl", "cublas"):
        (tmp_path / "packages" / "nvidia" / part / "lib").mkdir(parents=True)
        (tmp_path / "packages" / "nvidia" / part / "lib" / f"lib{part}.so.9").touch()
    (tmp_path / "bin").mkdir()
    for name, script in {"git": GIT, "python": PYTHON, "nproc": "echo 16"}.items():
        tool(tmp_path, name, script)
    for name in ("cmake", "ninja", "ccache", "nvcc", "patchelf"):
        tool(tmp_path, name, "")
    memory(tmp_path, gib=21)
    return tmp_path


def tool(tree: Path, name: str, script: str) -> None:
    path = tree / "bin" / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$TREE/called"\n{script}\n')
    path.chmod(0o755)


def memory(tree: Path, gib: int) -> None:
    (tree / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {gib * 1024 * 1024} kB\n")


def build_torch(tree: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{tree}/bin:/usr/bin:/bin",
        "TREE": str(tree),
        "TORCH_VERSION": "2.10.0",
        "TORCH_CUDA_ARCH_LIST": "8.6",
        "TORCH_OUT": f"{tree}/out",
        "TORCH_SOURCE": f"{tree}/src",
        "TORCH_MEMINFO": f"{tree}/meminfo",
        **variables,
    }
    argv = ("sh", str(IMAGE / "torch.sh"))
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_torch_is_built_for_one_architecture_with_the_number_of_jobs_that_memory_allows(tree: Path) -> None:
    done = build_torch(tree, TORCH_COMMIT=COMMIT)
    assert done.returncode == 0, done.stderr
    environment = dict(line.partition("=")[::2] for line in (tree / "env").read_text().splitlines())
    expected = {
        "TORCH_CUDA_ARCH_LIST": "8.6",
        "MAX_JOBS": "5",  # 21 GiB, 4 per job
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        "TORCH_NVCC_FLAGS": "-Xfatbin -compress-all",
        "USE_SYSTEM_NCCL": "1",
        "NCCL_ROOT": f"{tree}/packages/nvidia/nccl",
        "CUDNN_ROOT": f"{tree}/packages/nvidia/cudnn",
        "PYTORCH_BUILD_VERSION": "2.10.0",
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    assert {name: environment.get(name) for name in expected} == expected
    assert os.listdir(tree / "out") == [WHEEL]
    # cmake and the linker look for names without a version.
    assert os.readlink(tree / "packages" / "nvidia" / "nccl" / "lib" / "libnccl.so") == "libnccl.so.9"
    assert hashlib.sha256(b"packed\n").hexdigest() in done.stdout
    called = (tree / "called").read_text()
    assert "--depth 1 --branch v2.10.0 --recurse-submodules" in called
    assert "$ORIGIN:$ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../../nvidia/cudnn/lib" in called


@pytest.mark.parametrize(("variables", "pattern"), [
    ({"TURNED_OFF": "USE_CUDA"}, "USE_CUDA is 'OFF'"),
    ({"TURNED_OFF": "USE_CUDNN"}, "USE_CUDNN is 'OFF'"),
    ({"TURNED_OFF": "USE_NCCL"}, "USE_NCCL is 'OFF'"),
    ({"TORCH_COMMIT": "0123"}, f"{COMMIT}.*0123|0123.*{COMMIT}"),
    ({"MADE": "torch-2.11-x.whl"}, r"torch-2\.11-x\.whl.*torch-2\.10\.0-\*\.whl|2\.10\.0-\*.*2\.11-x"),
    ({"MEMORY": "3"}, "3072 MiB.*4096|4096.*3072 MiB"),
    ({"MISSING": "nvcc"}, "torch.sh: nvcc: "),
])  # fmt: skip
def test_what_is_missing_or_turned_off_ends_the_build_with_one_line(
    tree: Path, variables: dict[str, str], pattern: str
) -> None:
    memory(tree, gib=int(variables.get("MEMORY", 21)))
    (tree / "bin" / variables.get("MISSING", "nproc")).unlink()
    done = build_torch(tree, **variables)
    assert done.returncode == 2
    assert re.search(pattern, done.stderr)
    assert done.stderr.count("\n") == 1
    assert "TURNED_OFF" not in variables or "pip wheel" not in (tree / "called").read_text()


def dockerfile_lines(begin: str, end: str) -> str:
    text = (IMAGE / "Dockerfile").read_text()
    return (begin + text.split(begin, 1)[1].split(end, 1)[0]).replace("\\\n", "\n")


def test_the_built_wheel_replaces_the_locks_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    wheel = tmp_path / "torch" / WHEEL
    wheel.write_text("a wheel")
    script = dockerfile_lines('lock="/locks/${PROFILE}.txt"', "if ls /wheels/").replace("/from-torch", str(tmp_path))
    script = script.replace("/locks/", f"{IMAGE}/locks/").replace("/opt/lock.txt", f"{tmp_path}/lock.txt")
    environment = {"PATH": "/usr/bin:/bin", "PROFILE": "current"}
    subprocess.run(("sh", "-euc", script), env=environment, check=True, timeout=60)
    changed, lock = ((tmp_path / "lock.txt").read_text(), (IMAGE / "locks" / "current.txt").read_text())
    before, _, after = lock.partition("torch==")
    line = f"torch @ file://{wheel} --hash=sha256:{hashlib.sha256(b'a wheel').hexdigest()}\n"
    assert changed == f"{before}{line}{after[after.index('tqdm==') :]}"


def test_only_cuda_packages_are_installed_for_the_build() -> None:
    lock = str(IMAGE / "locks" / "current.txt")
    script = dockerfile_lines("awk '/^[a-z0-9]/ { keep", " > /opt/build").replace('"/locks/${PROFILE}.txt"', lock)
    output = subprocess.run(("sh", "-euc", script), capture_output=True, text=True, check=True, timeout=60).stdout
    names = [text.partition("==")[0] for text in output.splitlines() if text[:1].isalnum()]
    assert {"nvidia-cudnn-cu12", "nvidia-nccl-cu12", "nvidia-cublas-cu12"} <= set(names)
    assert all(name.startswith("nvidia-") for name in names)
    assert output.count("--hash=sha256:") >= len(names)
