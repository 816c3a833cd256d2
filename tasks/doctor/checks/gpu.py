"""The GPU of this machine: can torch, bitsandbytes and Triton use it? Asked where trials run here, and one is here."""

import json
import sys
from pathlib import Path

from remote.hosts.process import run_program
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Skipped, fine, from_error

DEVICE_FILE = Path("/dev/nvidiactl")
_LOAD_SEC = 60.0  # torch and transformers from a cold disk; the checks' own deadline is shorter
CHECKS = Checks("gpu")


@CHECKS.asks("usable", "Can torch, bitsandbytes and Triton use the GPU that is here?", others=examples.gpu)
def usable(facts: CheckContext) -> CheckResult:
    settings = facts.settings
    if settings.fleet.kind == "pods" and "gpu" not in facts.only:
        raise Skipped("fleet.kind is pods: trials do not run on this machine")
    is_wanted = settings.bench.profile == "gpu" or "gpu" in facts.only
    if not DEVICE_FILE.exists() and not is_wanted:
        raise Skipped(f"no NVIDIA GPU here (no {DEVICE_FILE}), and bench.profile is tiny: trials run on the CPU")
    argv = (sys.executable, "-m", "bench", "preflight")
    ended = run_program(argv, label="bench preflight", folder=str(settings.root), timeout_sec=_LOAD_SEC)
    if ended.exit_code != 0:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        return from_error(said[-1] if said else f"`python -m bench preflight` ended with {ended.exit_code}")
    found = json.loads(ended.stdout)
    versions = ", ".join(f"{name} {found[name]}" for name in ("torch", "bitsandbytes") if found.get(name))
    return fine(f"{found['gpu_name']}, driver {found['gpu_driver']}: {versions} can use it")
