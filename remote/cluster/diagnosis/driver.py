"""NVIDIA driver branches that an image supports, from its base image's variable NVIDIA_REQUIRE_CUDA. Pure.

The container runtime on the node reads the same variable and refuses to start a container whose driver does not fit.
It holds alternatives separated by spaces; each has conditions separated by commas. nvidia/cuda:12.8.1 has

    cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536 ...

A driver new enough for that CUDA fits, and so do some older branches, by CUDA's forward compatibility packages.
Not covered: the brand, which no node label has. A branch that is listed for any brand counts.
"""

import re
from dataclasses import dataclass

# First driver branch of each CUDA version (CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding
# Driver Versions").
_FIRST_BRANCHES = {
    (11, 8): 520,
    (12, 0): 525,
    (12, 1): 530,
    (12, 2): 535,
    (12, 3): 545,
    (12, 4): 550,
    (12, 5): 555,
    (12, 6): 560,
    (12, 7): 565,
    (12, 8): 570,
    (12, 9): 575,
    (13, 0): 580,
}
_CONDITION = re.compile(r"(cuda|driver|brand)(>=|<=|=|<|>)([\w.]+)\Z")


@dataclass(frozen=True, kw_only=True)
class DriverRange:
    """Driver branches that an image supports: `minimum` and newer, and those in `older`."""

    minimum: int
    older: tuple[int, ...] = ()

    def fits(self, branch: int) -> bool:
        return branch >= self.minimum or branch in self.older

    def __str__(self) -> str:
        return f"{self.minimum} or newer" + (f", or of {', '.join(map(str, self.older))}" if self.older else "")


def parse_drivers(requirement: str) -> DriverRange | None:
    """Parse a value of NVIDIA_REQUIRE_CUDA; None if it has no CUDA version that is known."""
    minimum: int | None = None
    older: set[int] = set()
    for alternative in requirement.split():
        matches = [_CONDITION.match(condition) for condition in alternative.split(",")]
        if not all(matches):
            continue
        limits = {(match[1], match[2]): match[3] for match in matches if match is not None}
        if set(limits) == {("cuda", ">=")}:
            minimum = _first_branch(limits["cuda", ">="])
        lowest, end = limits.get(("driver", ">=")), limits.get(("driver", "<"))
        if lowest is not None and end is not None:
            older.update(range(_major_version(lowest), _major_version(end)))
    if minimum is None:
        return None
    return DriverRange(minimum=minimum, older=tuple(sorted(branch for branch in older if branch < minimum)))


def _first_branch(cuda: str) -> int | None:
    major, _, minor = cuda.partition(".")
    if not (major.isdecimal() and (minor or "0").isdecimal()):
        return None
    return _FIRST_BRANCHES.get((int(major), int(minor or 0)))


def _major_version(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if re.fullmatch(r"[0-9]{1,4}", head) else 0
