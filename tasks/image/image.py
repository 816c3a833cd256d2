"""`inv image.*`: locks, the proof that an image works, its sizes, and archives for the other side of an air gap."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from tasks.cli.flags import number
from tasks.errors import Interrupted, Resumable, TaskFailed, UsageError

if TYPE_CHECKING:
    from remote.image.sdk import Layer
    from remote.image.vmjob import Outcome
    from remote.jobs.agent import Agent
    from tasks.settings.load import Settings

LOCK_SEC = 1800.0
VERIFY_SEC = 3600.0  # 14 GB are read in full
SELFCHECK_SEC = 900.0
PLATFORM = "x86_64-manylinux_2_28"
# Ephemeral storage of an OKE node with the boot volume it comes with, 50 GB; `kubectl describe node` says yours.
ALLOCATABLE_GB = 37.0
# Unknown until it was pushed: what packages were seen to compress to, and weights, which hardly do.
STACK_RATIO, WEIGHTS_RATIO = 0.6, 0.95


@task(
    help={"profile": "remake this profile's lock alone", "upgrade": "take the newest versions that the .in file allows"}
)
def lock(context: Context, profile: str | None = None, upgrade: bool = False) -> None:
    """Remake image/locks from their .in files, hashes included."""
    from tasks.image import profiles
    from tasks.settings import load as house

    settings = house.load(context)
    known = profiles.known(settings.root)
    if profile is not None and profile not in known:
        raise UsageError(f"image.lock: --profile: expected one of {', '.join(known)}, found {profile!r}")
    for name in [profile] if profile is not None else known:
        folder = settings.root / "image" / "locks"
        argv = (
            *(sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--generate-hashes"),
            *("--only-binary", ":all:", "--python-version", known[name].python, "--python-platform", PLATFORM),
            *("--custom-compile-command", "inv image.lock", "--output-file", f"{name}.txt"),
            *(("--upgrade",) if upgrade else ()),
            f"{name}.in",
        )
        try:
            ended = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=LOCK_SEC, check=False)
        except subprocess.TimeoutExpired:
            raise Resumable(f"image.lock: {name}: not done after {LOCK_SEC:.0f} s; `inv image.lock`") from None
        if ended.returncode != 0:
            raise TaskFailed(f"image.lock: {name}: {' '.join(ended.stderr.split()[-60:]) or argv}")
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        packages = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
        print(f"image/locks/{name}.txt: {len(packages)} packages, {text.count('--hash=')} hashes")


@task
def verify(context: Context) -> None:
    """Prove that the image is whole and that a trial runs in it."""
    from remote.image import engine
    from remote.image import sdk as images
    from tasks.connect.buildvm import build_vm
    from tasks.image import profiles
    from tasks.image.build import client
    from tasks.settings import load as house

    settings = house.load(context)
    name = profiles.image_name(settings)
    with build_vm(settings, "inv image.verify") as host:
        facts = engine.observe(host, client(settings))
        with images.connected(host, client(settings), facts) as sdk:
            image = sdk.images.get(name)
            print(f"{name} {str(image.id)[7:19]}, {image.attrs['Size'] / 1e9:.2f} GB unpacked")
            for key, value in sorted(image.labels.items()):
                print(f"  {key} = {value}")
            check = ("python", "/opt/qlora-fleet/selfcheck.py", "--verify", "--json")
            report = _report(name, images.run_check(sdk, name, check, timeout_sec=VERIFY_SEC))
            wrong = [*report["wrong"], *_differing_models(report, images.model_digests(image.labels))]
            _show(report)
            if not wrong:
                wrong += _two_steps(settings, sdk, name, has_gpu=report["device"]["visible"])
    if wrong:
        for line in wrong:
            print(f"  WRONG: {line}")
        raise TaskFailed(f"{name}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""))
    print(f"{name}: whole")


def _two_steps(settings: Settings, sdk: Any, name: str, *, has_gpu: bool) -> list[str]:
    """Train two steps of a tiny model inside, where the profile's stack can without a GPU; what is wrong."""
    from remote.image import sdk as images
    from tasks.image import profiles

    if not has_gpu and not profiles.read(settings).runs_on_cpu:
        print("  no GPU here, and this profile's stack trains on one only: no trial was run")
        return []
    ended = images.run_check(sdk, name, ("python", "-m", "bench", "selfcheck"), timeout_sec=SELFCHECK_SEC)
    said = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    for line in said[-3:]:
        print(f"  {line}")
    return [] if ended.exit_code == 0 else [f"python -m bench selfcheck: {said[-1] if said else 'said nothing'}"]


def _report(name: str, ended: Any) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = " ".join((ended.stderr or ended.stdout).split()[-30:])
        raise TaskFailed(f"{name}: its self-check ended with {ended.exit_code} and no report: {last}") from None
    return report


def _differing_models(report: dict[str, Any], expected: dict[str, str]) -> Iterator[str]:
    inside = {model["name"]: model["manifest_sha256"] for model in report["models"]}
    for name in sorted(expected.keys() | inside.keys()):
        if name not in inside:
            yield f"model {name}: the labels name it, and it is not inside"
        elif expected.get(name) != inside[name]:
            yield f"model {name}: its manifest is not the one the image was built from"


def _show(report: dict[str, Any]) -> None:
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    print(f"  python {report['python']}: {packages}")
    device = report["device"]
    if device["torch"] is not None:
        seen = "a device is visible" if device["visible"] else "no device on this machine, which is no fault"
        print(f"  CUDA {device['cuda']}: {seen}")
    for model in report["models"]:
        print(f"  model {model['name']}: {model['files']} files, {model['bytes'] / 1e9:.2f} GB, every sha256 read")
    if not report["models"]:
        print("  no model inside")


@task(
    help={
        "mbps": "bandwidth of a node, in megabit/s (default: 1000)",
        "allocatable-gb": f"a node's allocatable storage in GB (default: {ALLOCATABLE_GB:g}, a 50 GB boot volume)",
    }
)
def size(context: Context, mbps: str = "1000", allocatable_gb: str = f"{ALLOCATABLE_GB:g}") -> None:
    """Show the image's size: layers, push, pull, room on a node."""
    from remote.image import engine
    from remote.image import sdk as images
    from tasks.connect.buildvm import build_vm
    from tasks.image import profiles
    from tasks.image.build import client
    from tasks.settings import load as house

    settings = house.load(context)
    bandwidth = number("image.size: --mbps", mbps, "a number above 0", lambda given: given > 0)
    room = number("image.size: --allocatable-gb", allocatable_gb, "a number above 0", lambda given: given > 0)
    name = profiles.image_name(settings)
    with build_vm(settings, "inv image.size") as host:
        facts = engine.observe(host, client(settings))
        with images.connected(host, client(settings), facts) as sdk:
            found = images.layers(sdk.images.get(name))
    for layer in found:
        print(f"{layer.size / 1e6:12.2f} MB  {layer.kind:<8} {layer.step[:80]}")
    total = sum(layer.size for layer in found)
    kinds = {
        kind: sum(layer.size for layer in found if layer.kind == kind)
        for kind in ("weights", "stack", "system", "code")
    }
    print(
        f"{total / 1e6:12.2f} MB  in all: " + ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in kinds.items())
    )
    compressed, how = _compressed(settings, found)
    print(
        f"an edit of bench pushes {_edit_bytes(settings) / 1e6:.3f} MB; a first push, {compressed / 1e9:.2f} GB ({how})"
    )
    pull_sec = compressed * 8 / (bandwidth * 1e6)
    print(f"a node with {bandwidth:g} Mb/s pulls it in {_duration(pull_sec)}, unpacking not counted")
    # A node keeps what it pulled beside what it unpacked.
    needed = (total + compressed) / 1e9
    fits = "fits" if needed <= room else "does not fit: grow the nodes' boot volume"
    print(f"a node needs {needed:.1f} GB for it; of {room:g} GB allocatable that {fits}")


def _compressed(settings: Settings, found: list[Layer]) -> tuple[float, str]:
    """Bytes of the image in a registry: as it said itself after a push of this very size, or an estimate."""
    from bench.records.layout import IMAGE_FILE

    try:
        pushed = json.loads((settings.results_folder / IMAGE_FILE).read_text(encoding="utf-8"))
        if pushed["size_bytes"] == sum(layer.size for layer in found):
            return float(pushed["compressed_bytes"]), "as pushed"
    except (OSError, ValueError, KeyError):
        pass  # never pushed from here: an estimate it is
    parts = ((layer.size * (WEIGHTS_RATIO if layer.kind == "weights" else STACK_RATIO)) for layer in found)
    return sum(parts), f"estimated: {STACK_RATIO:g} of packages, {WEIGHTS_RATIO:g} of weights"


def _edit_bytes(settings: Settings) -> int:
    """What the layer of bench takes compressed: all of it is pushed again when one line of it changes."""
    from remote.image.context import bench_files

    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in bench_files(settings.root):
            tar.add(path, arcname=f"opt/qlora-fleet/{path.relative_to(settings.root)}")
    return len(content.getvalue())


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


@task(help={"path": "folder on the build VM for the archive and its checksum"})
def archive(context: Context, path: str) -> None:
    """Save the image as one compressed file with its checksum."""
    outcome = _archive_job(context, "archive", path, f"inv image.archive {path}")
    facts = outcome.facts
    how = "was there" if facts["compressor"] is None else f"by {facts['compressor']}, {outcome.wall_time_sec:.1f} s"
    print(
        f"{facts['path']} {facts['size_bytes'] / 1e9:.3f} GB, {how}; check it anywhere: sha256sum --check FILE.sha256"
    )


@task(help={"path": "the archive on the build VM, its .sha256 beside it"})
def load(context: Context, path: str) -> None:
    """Load an archive whose checksum is right into the engine."""
    outcome = _archive_job(context, "load", path, f"inv image.load {path}")
    print(f"{outcome.facts['path']} is loaded: {outcome.facts['image_id']}")


def _archive_job(context: Context, action: str, path: str, again: str) -> Outcome:
    from remote.image import vmjob
    from remote.jobs.job import HostBusy
    from tasks.connect.buildvm import build_vm, show_cut, show_line
    from tasks.image import profiles
    from tasks.image.build import client
    from tasks.settings import load as house

    settings = house.load(context)
    if not path.startswith("/"):
        raise UsageError(f"image.{action}: expected an absolute path on the VM, found {path!r}")
    how = client(settings)
    document = {
        "docker": [how.program],
        "environment": how.environment,
        "image": profiles.image_name(settings),
        "action": action,
        "path": path,
    }
    with _left_running(again), build_vm(settings, again) as host:
        agent = vmjob.agent_on(host)
        job = vmjob.running(agent)
        if job is None:
            if action == "archive":
                _check_room(settings, agent, path)
            job = vmjob.new(agent, "archive", action)
            try:
                vmjob.start(job, document, deadline_sec=settings.image.deadline_sec)
            except HostBusy as busy:
                raise Resumable(f"{busy}; when that has ended, `{again}`") from None
        elif f"archive-{action}-" not in job.folder:
            raise Resumable(f"{host.name}: busy with {job.folder}; when that has ended, `{again}`")
        return vmjob.follow(job, show_line, show_cut)


def _check_room(settings: Settings, agent: Agent, path: str) -> None:
    """`docker save` unpacks the whole image beside the engine's data before its first byte comes out."""
    from remote.image import engine
    from tasks.image import profiles
    from tasks.image.build import client

    facts = engine.observe(agent.host, client(settings))
    found = engine.inspect(agent.host, client(settings), profiles.image_name(settings))
    if found is None:
        raise UsageError(f"{profiles.image_name(settings)}: not on the VM; `inv build` makes it")
    seen = engine.look(agent.host, (path, facts.data_root))
    unpack = seen.docker_tmpdir or facts.data_root
    seen = engine.look(agent.host, (path, unpack))
    for place, what in ((seen.place(unpack), "docker save unpacks the image there"), (seen.place(path), "the archive")):
        if place.free_bytes < found["Size"]:
            raise UsageError(
                f"{place.path}: {place.free_bytes / 1e9:.1f} GB free, and {found['Size'] / 1e9:.1f} GB may be "
                f"needed: {what}; "
                + ("set DOCKER_TMPDIR for the engine to a larger disk" if place.path == unpack else "name a larger one")
            )


@contextmanager
def _left_running(again: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"left; what runs on the VM goes on: `{again}` goes back to it") from None
