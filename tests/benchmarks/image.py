"""Time of build and push over SSH with a real engine and registry: no change, one edited line, an archive.

The base image and the stack are small stand-ins, so the seconds are those of an edit, which touches neither.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.records.bootstrap import summarize
from tests.benchmarks import Figure, seconds, spread
from tests.support.machines.build_vm import DOCKER, BuildVm, running_build_vm

UNCHANGED, EDITS, ARCHIVES = 7, 5, 5
IMAGE = "qlora-fleet:tiny"


def main() -> list[Figure]:
    with _build_vm() as build_vm:
        build_vm.inv("build")
        build_vm.inv("push")
        return [*_unchanged(build_vm), *_edits(build_vm), _archives(build_vm)]


@contextlib.contextmanager
def _build_vm() -> Iterator[BuildVm]:
    try:
        with running_build_vm() as build_vm:
            yield build_vm
    except pytest.skip.Exception as reason:
        raise RuntimeError(f"no build VM can be played here: {reason}") from None


def _unchanged(build_vm: BuildVm) -> list[Figure]:
    logins, sent = build_vm.network.vm_sshd.logins(), _sent_bytes(build_vm)
    took = [seconds(lambda: build_vm.inv("build")) for _ in range(UNCHANGED)]
    per_build = (build_vm.network.vm_sshd.logins() - logins) / UNCHANGED
    wire = (_sent_bytes(build_vm) - sent) / UNCHANGED
    return [
        Figure(name="inv build, unchanged", value=spread(summarize(took), "s"), goal="5 s"),
        Figure(name="... SSH connections of one build", value=f"{per_build:g}", goal="1"),
        Figure(name="... bytes on the wire, SSH included", value=f"{wire / 1000:.1f} kB"),
    ]


def _sent_bytes(build_vm: BuildVm) -> int:
    """Return the kernel's count of bytes that the laptop has sent to the VM, including headers."""
    cable = build_vm.network.cable
    output = cable.one.run("ip", "-s", "-j", "link", "show", cable.card).stdout
    return int(json.loads(output)[0]["stats64"]["tx"]["bytes"])


def _edits(build_vm: BuildVm) -> list[Figure]:
    took, stored = [], []
    for number in range(EDITS):
        before = set(build_vm.blobs())
        build_vm.edit_bench(f"edit {number}")
        took.append(seconds(lambda: (build_vm.inv("build"), build_vm.inv("push"))))
        stored.append(sum(size for digest, size in build_vm.blobs().items() if digest not in before) / 1e6)
    return [
        Figure(name="one edited line: inv build and inv push", value=spread(summarize(took), "s"), goal="10 s"),
        Figure(name="... new in the registry", value=spread(summarize(stored), "MB"), goal="1 MB"),
    ]


def _archives(build_vm: BuildVm) -> Figure:
    """Measure our archive, job and checksum included, and the usual pipe on the same VM, in turns."""
    ours, usual = [], []
    folder = Path(build_vm.tmpdir, "archives")
    for _ in range(ARCHIVES):
        for old in folder.glob("*"):
            old.unlink()
        ours.append(seconds(lambda: build_vm.inv("image.archive", str(folder))))
        pipe = f"{DOCKER} save {IMAGE} | gzip > '{build_vm.tmpdir}/usual.tar.gz'"
        usual.append(seconds(lambda pipe=pipe: build_vm.vm.run("bash", "-o", "pipefail", "-c", pipe, timeout=600)))  # type: ignore[misc]
    ratio = sorted(gzip / mine for gzip, mine in zip(usual, ours, strict=True))[ARCHIVES // 2]
    (archive,) = folder.glob("*.tar.*[!6]")
    size = archive.stat().st_size / Path(build_vm.tmpdir, "usual.tar.gz").stat().st_size
    return Figure(
        name=f"inv image.archive ({archive.suffix}, {size:.2f} of gzip's size)",
        value=spread(summarize(ours), "s"),
        ratio=f"{ratio:.2f} x as fast as `docker save | gzip` at {summarize(usual).median:.3g} s",
        goal="2 x",
    )
