"""This machine: Python and its packages, ssh and rsync, disk, clock."""

import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine

LEAST_FREE_BYTES, FEW_FREE_BYTES = 1_000_000_000, 5_000_000_000
SKEW_SEC = 60.0  # OCI refuses a request after 300 s; certificates and tokens are dated too
CHECKS = Checks("machine")

CONFLICT = Fault(
    what="packages conflict: {conflict}",
    remedy="`make install` in the project's folder installs the versions of constraints.txt",
)
NO_SSH = Fault(what="no program ssh, which resolves build.host", remedy="apt-get install openssh-client")
NO_RSYNC = Fault(
    what="no program rsync: models go to the VM by tar, and a broken move begins its file again",
    remedy="apt-get install rsync",
    mark=CheckStatus.CAREFUL,
)
DISK_FULL = Fault(
    what="{folder}: {free} free: results cannot be kept",
    remedy="free space there, or set results.folder to another disk",
)
DISK_SMALL = Fault(
    what="{folder}: {free} free, which checkpoints and adapters soon fill",
    remedy="free space there, or set results.folder to another disk",
    mark=CheckStatus.CAREFUL,
)
CLOCK = Fault(
    what="this clock is {skew} s {direction} that of {whose}: logins are refused, certificates count as expired",
    remedy="sudo timedatectl set-ntp true",
)


@CHECKS.asks("python", "Which Python runs here?")
def python(_: CheckContext) -> CheckResult:
    return fine(f"Python {platform.python_version()} at {sys.executable}, {platform.platform(terse=True)}")


@CHECKS.asks("packages", "Does every installed package have what it requires, in a version that fits?", CONFLICT)
def packages(_: CheckContext) -> CheckResult:
    there = list(metadata.distributions())
    first, *others = [*conflicts(there)] or [""]
    if not first:
        return fine(f"each of {len(there)} packages has what it requires")
    return CONFLICT.seen(conflict=first + (f" (and {len(others)} more)" if others else ""))


def conflicts(installed: Sequence[metadata.Distribution]) -> Iterator[str]:
    """What packages require and do not find, as `pip check` does; extras are not asked for."""
    versions = {canonicalize_name(one.name): one.version for one in installed}
    for one in installed:
        for line in one.requires or ():
            needs = Requirement(line)
            if needs.marker is not None and not needs.marker.evaluate({"extra": ""}):
                continue
            found = versions.get(canonicalize_name(needs.name))
            if found is None or not needs.specifier.contains(found, prereleases=True):
                has = f"{needs.name} {found} is" if found else "it is not"
                yield f"{one.name} {one.version} requires {needs.name}{needs.specifier}, and {has} installed"


@CHECKS.asks("programs", "Are ssh and rsync here, which reach the build VM?", NO_SSH, NO_RSYNC)
def programs(facts: CheckContext) -> CheckResult | list[CheckResult]:
    if facts.settings.build.host is None:
        raise Skipped("build.host is null, so nothing goes over SSH")
    if shutil.which("ssh") is None:
        return NO_SSH.seen()
    return NO_RSYNC.seen() if shutil.which("rsync") is None else fine("ssh and rsync are there")


@CHECKS.asks("disk", "Is there room for results?", DISK_FULL, DISK_SMALL)
def disk(facts: CheckContext) -> CheckResult:
    folder = facts.settings.results_folder
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    values = {"folder": folder, "free": f"{free / 1e9:.1f} GB"}
    if free < LEAST_FREE_BYTES:
        return DISK_FULL.seen(**values)
    return DISK_SMALL.seen(**values) if free < FEW_FREE_BYTES else fine(f"{values['free']} free at {folder}")


@CHECKS.asks("clock", "Does this clock agree with that of the cluster, or of the build VM?", CLOCK)
def clock(facts: CheckContext) -> CheckResult:
    whose = "the cluster"
    try:
        theirs = facts.version.get()[1]
    except Skipped:
        theirs = None
    if theirs is None:
        try:
            theirs, whose = facts.machine.get().clock, "the build VM"
        except Skipped:
            raise Skipped("neither cluster nor build VM says what time it is") from None
    return compared(time.time(), theirs, whose)


def compared(ours: float, theirs: float, whose: str) -> CheckResult:
    """Our clock beside another's, seconds since 1970. A fact may be as old as the checks have run."""
    skew = ours - theirs
    if abs(skew) <= SKEW_SEC:
        return fine(f"this clock and that of {whose} agree within {SKEW_SEC:.0f} s")
    return CLOCK.seen(skew=f"{abs(skew):.0f}", direction="ahead of" if skew > 0 else "behind", whose=whose)
