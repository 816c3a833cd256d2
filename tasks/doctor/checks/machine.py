"""Checks of this machine: Python and its packages, disk, clock, and its GPU if trials run here."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from bench.records.status import read_failure
from bench.records.units import format_gb
from remote.hosts.local_program import run_program
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, from_error, passed

MIN_FREE_BYTES, LOW_FREE_BYTES = 1_000_000_000, 5_000_000_000
MAX_SKEW_SEC = 60.0  # OCI rejects requests with a skew of 300 s; certificates and tokens have dates, too
CHECKS, GPU_CHECKS = Checks("machine"), Checks("gpu")
DEVICE_FILE = Path("/dev/nvidiactl")
_TIMEOUT_SEC = 60.0  # a preflight imports torch and transformers from a cold disk; the checks' deadline is shorter

CONFLICT = Fault(
    "packages conflict: {conflict}", "`make install` in the project's folder installs the versions of constraints.txt"
)
DISK_FULL = Fault(
    "{folder}: {free} free: not enough for results", "free space there, or set results.folder to another disk"
)
DISK_SMALL = Fault(
    "{folder}: {free} free: checkpoints and adapters will soon fill it",
    "free space there, or set results.folder to another disk",
    status=CheckStatus.WARN,
)
NOT_WRITABLE = Fault(
    "{folder}: this user cannot write there",
    "correct its owner, permissions or mount, or set results.folder to another folder",
)
CLOCK = Fault(
    "this clock is {skew} s {direction} that of {remote}: logins are rejected, certificates count as expired",
    "sudo timedatectl set-ntp true",
)


@CHECKS.register(
    "packages", "Are the requirements of every installed package installed, in a matching version?", CONFLICT
)
def packages(_: CheckContext) -> CheckResult:
    completed = run_program((sys.executable, "-m", "pip", "check"), label="pip check", timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code == 0:
        return passed(f"those of every package in {sys.prefix} are installed")
    first, *others = completed.stdout.decode(errors="replace").splitlines() or [""]
    if not first:
        raise Skipped(f"{sys.prefix} has no pip, which would check them")
    more = f" (and {len(others)} more)" if others else ""
    return CONFLICT.result(conflict=first.removesuffix(".") + more)


@CHECKS.register("disk", "Is there room for results?", NOT_WRITABLE, DISK_FULL, DISK_SMALL)
def disk(context: CheckContext) -> CheckResult:
    folder = context.settings.results_folder
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return NOT_WRITABLE.result(folder=existing)
    free = shutil.disk_usage(existing).free
    values = {"folder": folder, "free": format_gb(free)}
    if free < MIN_FREE_BYTES:
        return DISK_FULL.result(**values)
    return DISK_SMALL.result(**values) if free < LOW_FREE_BYTES else passed(f"{values['free']} free at {folder}")


@CHECKS.register("clock", "Does this clock agree with that of the cluster, or of the build VM?", CLOCK)
def clock(context: CheckContext) -> CheckResult:
    remote_name = "the cluster"
    try:
        remote_time = context.version.get_or_skip()[1]
    except Skipped:
        remote_time = None
    if remote_time is None:
        try:
            remote_time, remote_name = context.machine.get_or_skip().clock, "the build VM"
        except Skipped as error:
            raise Skipped("no time from the cluster or the build VM") from error
    return compare_clocks(time.time(), remote_time, remote_name)


def compare_clocks(local_time: float, remote_time: float, remote_name: str) -> CheckResult:
    """Compare Unix times of this machine and another one. The remote time may be as old as the start of the checks."""
    skew = local_time - remote_time
    if abs(skew) <= MAX_SKEW_SEC:
        return passed(f"this clock and that of {remote_name} agree within {MAX_SKEW_SEC:.0f} s")
    return CLOCK.result(skew=f"{abs(skew):.0f}", direction="ahead of" if skew > 0 else "behind", remote=remote_name)


@GPU_CHECKS.register("usable", "Can torch, bitsandbytes and Triton use this machine's GPU?")
def usable(context: CheckContext) -> CheckResult:
    settings = context.settings
    if settings.connector.is_cluster and "gpu" not in context.only:
        raise Skipped("fleet.kind is pods: trials do not run on this machine")
    is_required = settings.bench.profile == "gpu" or "gpu" in context.only
    if not DEVICE_FILE.exists() and not is_required:
        raise Skipped(f"no NVIDIA GPU (no {DEVICE_FILE}), and bench.profile is tiny: trials run on the CPU")
    argv = (sys.executable, "-m", "bench", "preflight")
    completed = run_program(argv, label="bench preflight", folder=str(settings.root), timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code != 0:
        if (failed := read_failure(completed.stdout)) is not None:
            return from_error(failed[1])
        lines = completed.stderr.decode(errors="replace").strip().splitlines()
        return from_error(lines[-1] if lines else f"`python -m bench preflight` ended with {completed.exit_code}")
    report = json.loads(completed.stdout)
    versions = ", ".join(f"{name} {report[name]}" for name in ("torch", "bitsandbytes") if report.get(name))
    return passed(f"{report['gpu_name']}, driver {report['gpu_driver']}: {versions} can use it")
