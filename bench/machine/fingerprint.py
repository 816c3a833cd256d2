"""The fingerprint: facts of the machine and the software behind a result, without host name, user or secrets.

The facts come from an allow-list. Keys are flat and carry units; an unknown fact is None. The result contains what
reports need; environment.json next to it also has all GPUs, packages, digests and the variables that change speed.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.data.inputs import DataFacts, ModelFacts
from bench.machine import nvml
from bench.records import Trial
from bench.records.atomic_files import write_atomic
from bench.records.paths import ENVIRONMENT_FILE
from bench.records.version import SCHEMA_VERSION, VERSION

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "safetensors")
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
GIT_SHA_VARIABLE = "QLORA_FLEET_GIT_SHA"  # set by the image's build, because an image has no git folder
COMMAND_TIMEOUT_SEC = 10.0
# Set by the image's build; a container cannot query its own digest.
DIGEST_VARIABLES = {"image_digest": "QLORA_FLEET_IMAGE_DIGEST", "lock_digest": "QLORA_FLEET_LOCK_DIGEST"}
# Variables that change speed or precision and hold no secret.
VARIABLES = (
    *("BNB_CUDA_VERSION", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
    *("CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_IB_DISABLE"),
    *("NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NVIDIA_DRIVER_CAPABILITIES"),
    *("NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTORCH_ALLOC_CONF"),
    *("PYTORCH_CUDA_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
)
_FIELD = re.compile(r"^(Name|Version): *(.*\S)", re.MULTILINE)


def host_facts() -> dict[str, Any]:
    """Collect facts that need no torch: versions, code, processor, memory, load."""
    sha, dirty = code_version()
    return {
        "qlora_fleet": VERSION,
        "python": platform.python_version(),
        **{name: _package_version(name) for name in PACKAGES},
        "git_sha": sha,
        "git_dirty": dirty,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_model": _cpu_line("model name") or platform.processor() or None,
        "cpu_logical_cores": os.cpu_count(),
        "cpu_allowed_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_total_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average_1min_at_start": round(os.getloadavg()[0], 2),
    }


def input_facts(trial: Trial, model: ModelFacts, data: DataFacts) -> dict[str, Any]:
    """Collect facts of the trial, the model and the data."""
    return {
        "trial_digest": trial.digest(),
        "model_sha256": model.sha256,
        "model_parameters": model.parameters,
        "model_bytes": model.bytes,
        "data_sha256": data.sha256,
        "data_samples": data.samples,
        "seed": trial.seed,
    }


def device_facts(torch: Any) -> dict[str, Any]:
    """Collect facts of the device that steps run on, as torch sees it; the GPU's fields are None without a GPU."""
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "torch": torch.__version__,  # includes +cpu or +cu130, which the installed version may omit
        "device": "cpu" if gpu is None else "cuda",
        "torch_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda": torch.version.cuda,
        "gpu_name": None if gpu is None else gpu.name,
        "gpu_compute_capability": None if gpu is None else f"{gpu.major}.{gpu.minor}",
        "gpu_memory_bytes": None if gpu is None else gpu.total_memory,
        "gpu_driver": None if gpu is None else nvml.driver_version(),
    }


def write(folder: Path, fingerprint: dict[str, Any]) -> Path:
    """Write environment.json into `folder`, atomically: `fingerprint` and `environment_facts`. Raises OSError.

    It takes 0.2 s, before anything is measured, so that a trial that dies has one too.
    """
    path = folder / ENVIRONMENT_FILE
    document = {"kind": "environment", "schema_version": SCHEMA_VERSION, **fingerprint, **environment_facts()}
    write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def code_digest() -> str:
    """Compute the sha256 of the bench's own sources."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE_FOLDER.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE_FOLDER)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def environment_facts() -> dict[str, Any]:
    """Collect the digests of image, lock and code, the driver's GPUs, package versions and the allowed variables."""
    return {
        **{name: os.environ.get(variable) or None for name, variable in DIGEST_VARIABLES.items()},
        "code_sha256": code_digest(),
        "gpus": [{"name": gpu.name, **gpu.settings()} for gpu in nvml.all_gpus()],
        "packages": _installed_packages(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _installed_packages() -> dict[str, str]:
    """Return the packages' versions by name. One with damaged metadata has none.

    `metadata.metadata` parses the description too, which takes a fifth of a small trial's start time.
    """
    versions: dict[str, str] = {}
    for package in metadata.distributions():
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        fields = dict(_FIELD.findall(text.partition("\n\n")[0]))
        if {"Name", "Version"} <= fields.keys():
            versions.setdefault(fields["Name"], fields["Version"])  # the first on the path is imported
    return dict(sorted(versions.items()))


def code_version() -> tuple[str | None, bool | None]:
    """Return (git commit of this folder, True if it has changes); (None, None) if both are unknown."""
    if _command_output("git", "-C", str(PACKAGE_FOLDER), "ls-files", "--error-unmatch", "__init__.py") is not None:
        sha = _command_output("git", "-C", str(PACKAGE_FOLDER), "rev-parse", "HEAD")
        changed = _command_output("git", "-C", str(PACKAGE_FOLDER), "status", "--porcelain", "--", ".")
        return sha, None if changed is None else changed != ""
    return os.environ.get(GIT_SHA_VARIABLE), None


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def import_path() -> str:
    """Return the PYTHONPATH of a process that imports this package."""
    return os.pathsep.join(filter(None, (str(PACKAGE_FOLDER.parent), os.environ.get("PYTHONPATH"))))


def cpu_flags() -> frozenset[str]:
    """Return the processor's instruction set extensions as Linux names them; empty if unknown."""
    return frozenset((_cpu_line("flags") or "").split())


def _cpu_line(name: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else None


def _command_output(*argv: str) -> str | None:
    """Run a command and return its output without the last newline; None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", timeout=COMMAND_TIMEOUT_SEC, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
