"""What building and pushing cost over SSH with a real engine and registry: nothing to do, one edited line, an archive.

The base image and the stack are small stand-ins, so the seconds are those of an edit, which touches neither.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.records.interval import summarize
from tests.benchmarks import Figure, spread
from tests.support.machines.build_vm import DOCKER, Yard, yard

UNCHANGED, EDITS, ARCHIVES = 7, 5, 5
IMAGE = "qlora-fleet:tiny"


def main() -> list[Figure]:
    with _yard() as it:
        it.inv("build", check=True)
        it.inv("push", check=True)
        return [*_unchanged(it), *_edits(it), _archives(it)]


@contextlib.contextmanager
def _yard() -> Iterator[Yard]:
    try:
        with yard() as it:
            yield it
    except pytest.skip.Exception as reason:
        raise RuntimeError(f"no build VM can be played here: {reason}") from None


def _unchanged(it: Yard) -> list[Figure]:
    logins, sent = it.ground.vm_sshd.logins(), it.ground.cable.sent_bytes()
    took = [_sec(lambda: it.inv("build", check=True)) for _ in range(UNCHANGED)]
    per_build = (it.ground.vm_sshd.logins() - logins) / UNCHANGED
    wire = (it.ground.cable.sent_bytes() - sent) / UNCHANGED
    return [
        Figure(name="inv build, unchanged", value=spread(summarize(took), "s"), goal="5 s"),
        Figure(name="... SSH connections of one build", value=f"{per_build:g}", goal="1"),
        Figure(name="... bytes on the wire, SSH included", value=f"{wire / 1000:.1f} kB"),
    ]


def _edits(it: Yard) -> list[Figure]:
    took, stored = [], []
    for number in range(EDITS):
        before = set(it.blobs())
        it.edit_bench(f"edit {number}")
        took.append(_sec(lambda: (it.inv("build", check=True), it.inv("push", check=True))))
        stored.append(sum(size for digest, size in it.blobs().items() if digest not in before) / 1e6)
    return [
        Figure(name="one edited line: inv build and inv push", value=spread(summarize(took), "s"), goal="10 s"),
        Figure(name="... new in the registry", value=spread(summarize(stored), "MB"), goal="1 MB"),
    ]


def _archives(it: Yard) -> Figure:
    """Ours, job and checksum included, beside the usual pipe on the same VM, by turns."""
    ours, usual = [], []
    folder = Path(it.tmpdir, "archives")
    for _ in range(ARCHIVES):
        for old in folder.glob("*"):
            old.unlink()
        ours.append(_sec(lambda: it.inv("image.archive", str(folder), check=True)))
        pipe = f"{DOCKER} save {IMAGE} | gzip > '{it.tmpdir}/usual.tar.gz'"
        usual.append(_sec(lambda pipe=pipe: it.vm.run("bash", "-o", "pipefail", "-c", pipe, timeout=600)))  # type: ignore[misc]
    ratio = sorted(gzip / mine for gzip, mine in zip(usual, ours, strict=True))[ARCHIVES // 2]
    (archive,) = folder.glob("*.tar.*[!6]")
    size = archive.stat().st_size / Path(it.tmpdir, "usual.tar.gz").stat().st_size
    return Figure(
        name=f"inv image.archive ({archive.suffix}, {size:.2f} of gzip's size)",
        value=spread(summarize(ours), "s"),
        ratio=f"{ratio:.2f} x as fast as `docker save | gzip` at {summarize(usual).median:.3g} s",
        goal="2 x",
    )


def _sec(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began
