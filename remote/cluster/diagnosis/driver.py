"""Which NVIDIA drivers an image starts on, from the variable NVIDIA_REQUIRE_CUDA of its base image. Pure.

The container runtime on the node reads the same variable and refuses to start a container whose driver does not fit.
It holds alternatives, separated by spaces, each of conditions, separated by commas; nvidia/cuda:12.8.1 has

    cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536 ...

A driver new enough for that CUDA fits, and so do some older branches, by CUDA's forward compatibility packages.
Not covered: the brand, which no label of a node says: a branch that is listed for some brand counts.
"""

import re
from dataclasses import dataclass

# CUDA version to the first driver branch that has it (CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding
# Driver Versions").
_BRANCH_OF = {
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
class Drivers:
    """The driver branches that an image starts on: `since` and all newer ones, and the older ones in `also`."""

    since: int
    also: tuple[int, ...] = ()

    def fits(self, branch: int) -> bool:
        return branch >= self.since or branch in self.also

    def __str__(self) -> str:
        return f"{self.since} or newer" + (f", or of {', '.join(map(str, self.also))}" if self.also else "")


def drivers(requirement: str) -> Drivers | None:
    """The drivers that a value of NVIDIA_REQUIRE_CUDA allows; None where it says nothing that is understood."""
    since: int | None = None
    also: set[int] = set()
    for alternative in requirement.split():
        found = [_CONDITION.match(one) for one in alternative.split(",")]
        if not all(found):
            continue
        limits = {(one[1], one[2]): one[3] for one in found if one is not None}
        if set(limits) == {("cuda", ">=")}:
            since = _branch_of(limits["cuda", ">="])
        lowest, above = limits.get(("driver", ">=")), limits.get(("driver", "<"))
        if lowest is not None and above is not None:
            also.update(range(_number(lowest), _number(above)))
    if since is None:
        return None
    return Drivers(since=since, also=tuple(sorted(branch for branch in also if branch < since)))


def _branch_of(cuda: str) -> int | None:
    major, _, minor = cuda.partition(".")
    if not (major.isdecimal() and (minor or "0").isdecimal()):
        return None
    return _BRANCH_OF.get((int(major), int(minor or 0)))


def _number(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if re.fullmatch(r"[0-9]{1,4}", head) else 0
