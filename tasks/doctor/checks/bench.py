"""Checks by `python -m bench`: model and data as the workers see them, and this machine's GPU if trials run here."""

import json
import sys
from pathlib import Path

from bench.records.status import read_failure
from remote.hosts.local import LocalHost
from remote.hosts.process import run_program
from tasks.clients.workers import inspect, pod_hosts
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, Skipped, from_error, passed

DEVICE_FILE = Path("/dev/nvidiactl")
_PREFLIGHT_TIMEOUT_SEC = 60.0  # imports torch and transformers from a cold disk; the checks' deadline is shorter
GPU_CHECKS, MODEL_CHECKS = Checks("gpu"), Checks("models")


@GPU_CHECKS.register("usable", "Can torch, bitsandbytes and Triton use this machine's GPU?")
def usable(context: CheckContext) -> CheckResult:
    settings = context.settings
    if settings.connector.is_cluster and "gpu" not in context.only:
        raise Skipped("fleet.kind is pods: trials do not run on this machine")
    is_required = settings.bench.profile == "gpu" or "gpu" in context.only
    if not DEVICE_FILE.exists() and not is_required:
        raise Skipped(f"no NVIDIA GPU (no {DEVICE_FILE}), and bench.profile is tiny: trials run on the CPU")
    argv = (sys.executable, "-m", "bench", "preflight")
    completed = run_program(
        argv, label="bench preflight", folder=str(settings.root), timeout_sec=_PREFLIGHT_TIMEOUT_SEC
    )
    if completed.exit_code != 0:
        if (failed := read_failure(completed.stdout)) is not None:
            return from_error(failed[1])
        lines = completed.stderr.decode(errors="replace").strip().splitlines()
        return from_error(lines[-1] if lines else f"`python -m bench preflight` ended with {completed.exit_code}")
    report = json.loads(completed.stdout)
    versions = ", ".join(f"{name} {report[name]}" for name in ("torch", "bitsandbytes") if report.get(name))
    return passed(f"{report['gpu_name']}, driver {report['gpu_driver']}: {versions} can use it")


@MODEL_CHECKS.register("whole", "Does the first worker find model.path and data.path, and are they complete?")
def whole(context: CheckContext) -> CheckResult:
    settings = context.settings
    if settings.connector.is_local:
        folder = settings.resolve_path(settings.fleet.local.folder)
        inputs = inspect(settings, [LocalHost(name="worker-0", workdir=str(folder / "worker-0"))])
    else:
        context.version.get_or_skip()
        cluster = context.cluster.get_or_skip()
        if not cluster.list_fleet_objects("Job"):
            raise Skipped("no pod is deployed")
        inputs = inspect(settings, pod_hosts(settings, cluster.target)[:1])
    model, data = inputs["model"], inputs["data"]
    size = f"{model['parameters'] / 1e6:.0f} M parameters, {model['bytes'] / 1e9:.2f} GB"
    return passed(f"{model['path']}: {size}, complete; {data['path']}: {data['samples']} samples")
