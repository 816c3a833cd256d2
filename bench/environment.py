"""The fingerprint: what a result was measured with, from an allow-list. No environment dump, no host name, no user.

Keys are flat and carry units. A fact that cannot be had is None, never guessed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.inputs import DataFacts, ModelFacts
from bench.trial import Trial

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "safetensors")
CODE = Path(__file__).resolve().parent
GIT_SHA_VARIABLE = "QLORA_FLEET_GIT_SHA"  # set by an image's build, where there is no git folder to ask
COMMAND_SEC = 10.0


def host_facts() -> dict[str, Any]:
    """What is known without importing torch: versions, code, processor, memory, load."""
    sha, dirty = code_version()
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "git_sha": sha,
        "git_dirty": dirty,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_model": _cpu_line("model name") or platform.processor() or None,
        "cpu_logical_cores": os.cpu_count(),
        "cpu_allowed_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_total_bytes": _memory_bytes(),
        "load_average_1min_at_start": round(os.getloadavg()[0], 2),
    }


def input_facts(trial: Trial, model: ModelFacts, data: DataFacts) -> dict[str, Any]:
    """What was measured on."""
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
    """The device that steps run on, as torch sees it; the GPU's fields are None where there is none."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,  # says +cpu or +cu130, which the installed version may leave out
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "torch_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda": torch.version.cuda,
        "gpu_name": None,
        "gpu_compute_capability": None,
        "gpu_memory_bytes": None,
        "gpu_driver": None,
    }
    if facts["device"] == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        facts["gpu_name"] = gpu.name
        facts["gpu_compute_capability"] = f"{gpu.major}.{gpu.minor}"
        facts["gpu_memory_bytes"] = gpu.total_memory
        facts["gpu_driver"] = _driver()
    return facts


def code_version() -> tuple[str | None, bool | None]:
    """The git commit of this folder and whether it was changed since; (None, None) where neither can be known."""
    if _output("git", "-C", str(CODE), "ls-files", "--error-unmatch", "__init__.py") is not None:
        sha = _output("git", "-C", str(CODE), "rev-parse", "HEAD")
        changed = _output("git", "-C", str(CODE), "status", "--porcelain", "--", ".")
        return sha, None if changed is None else changed != ""
    return os.environ.get(GIT_SHA_VARIABLE), None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_flags() -> frozenset[str]:
    """The processor's instruction set extensions as Linux names them; empty where it does not say."""
    return frozenset((_cpu_line("flags") or "").split())


def _cpu_line(name: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _driver() -> str | None:
    said = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return said.splitlines()[0].strip() if said else None


def _output(*argv: str) -> str | None:
    """A command's output without the last newline; None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
