"""Every command that changes something, with --dry-run --json: it prints its plan and changes nothing.

Files are compared before and after; the fakes of a cluster and of the build VM fail on any change. Not covered here:
the commands of Oracle's tenancy (tests/unit/tasks/oci), and plans of real machines (tests/system).
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from bench.records.atomic_files import sha256_of
from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from remote.cluster.kubeconfig import Target
from remote.fleet.ledger import Ledger
from remote.hosts.command import Command as HostCommand
from remote.hosts.host_protocol import Completed
from remote.image.engine import EngineImage, EngineUsage
from remote.providers import PROVIDERS
from tasks import ns
from tasks.cli.flags import Command
from tasks.clients.workers import BenchProgram
from tasks.cluster import deploy, node_list
from tasks.fleet import bench
from tasks.image import archive, build, model, vm
from tasks.train import forecast, train
from tests.support.dry_runs import plan_of, refuse
from tests.support.paths import ROOT
from tests.support.reports import synthetic, training_run
from tests.unit.tasks.train.test_forecast import make_probe

DIGEST = "sha256:" + "ab" * 32
SETTINGS = f"""
cluster: {{ image: 'h/r@{DIGEST}', pull_secret: null, provider: generic, volume: {{ handle: null }} }}
registry: {{ image: 'registry.example/team/bench:1', user: me }}
model: {{ path: /models/m }}
"""
CHANGING = {
    command.full_name: command
    for collection in (ns, *ns.collections.values())
    for command in collection.tasks.values()
    if command.effect.changes and command.group != "tenancy"
}
RUN = synthetic.record()
Patch = pytest.MonkeyPatch


class ClusterWithoutChanges:
    """Cluster with one Job of ours; each change fails the test."""

    target = Target(context="one", cluster="c", user="u", namespace="n", server="https://s")
    provider = PROVIDERS["oci"]
    apply = refuse("Cluster.apply")
    delete = refuse("Cluster.delete")
    cordon = refuse("Cluster.cordon")

    def live_objects(self) -> list[dict[str, Any]]:
        labels = {"app.kubernetes.io/part-of": "qlora-fleet", "app.kubernetes.io/managed-by": "qlora-fleet"}
        return [{"kind": "Job", "metadata": {"name": "bench", "labels": labels}, "spec": {"parallelism": 1}}]

    def secrets(self, *_: object) -> list[dict[str, Any]]:
        return []

    nodes = pods = pods_everywhere = list_fleet_objects = secrets

    def is_allowed(self, *_: object) -> bool:
        return True

    def has_api_group(self, _: str) -> bool:
        return True

    def has_object(self, *_: object) -> bool:
        return True

    def try_apply(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return []


class HostWithoutChanges:
    """Build VM that only tells whether a file exists."""

    name, workdir = "vm", "/home/me/.qlora-fleet"

    def run(self, command: HostCommand, *, timeout_sec: float) -> Completed:
        assert command.argv[0] == "test", f"a dry run ran {command.render()} within {timeout_sec} s"
        return Completed(exit_code=0, stdout=b"", stderr=b"")


class EngineWithoutChanges:
    """Engine that has the image."""

    def image(self, _name: str) -> EngineImage:
        return EngineImage(image_id=DIGEST, size=1, labels={})

    def observe(self) -> SimpleNamespace:
        return SimpleNamespace(data_root="/var/lib/docker")

    def usage(self, *_: object) -> EngineUsage:
        return EngineUsage(unused_cache_bytes=1, old_images={DIGEST: 2})


@pytest.fixture
def results(project: Path) -> Path:
    folder = project / "results"
    synthetic.write_run(folder / RUN.run_id, RUN)
    Ledger.create(folder / RUN.run_id / LEDGER_FILE, [planned.trial_id for planned in RUN.planned])
    return folder


@pytest.fixture(autouse=True)
def _fakes(project: Path, monkeypatch: Patch) -> None:
    for name in ("image", "manifests"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))

    @contextlib.contextmanager
    def fake_cluster(_settings: object) -> Iterator[ClusterWithoutChanges]:
        yield ClusterWithoutChanges()

    @contextlib.contextmanager
    def fake_vm(*_: object, **__: object) -> Iterator[HostWithoutChanges]:
        yield HostWithoutChanges()

    @contextlib.contextmanager
    def fake_engine(*_: object) -> Iterator[EngineWithoutChanges]:
        yield EngineWithoutChanges()

    for module in (deploy, node_list):
        monkeypatch.setattr(module, "open_cluster", fake_cluster)
    for module in (archive, build, model, vm):
        monkeypatch.setattr(module, "build_vm", fake_vm)
    monkeypatch.setattr("remote.image.engine.connect", fake_engine)
    built = build.EngineImage(image_id="i", size=1, labels={})
    monkeypatch.setattr(build, "plan_build", lambda *_, **__: built)
    monkeypatch.setattr("remote.image.vm_jobs.VmWork.start", refuse("VmWork.start"))
    monkeypatch.setattr(model.vm_jobs, "claim", lambda *_, create=True: create and pytest.fail("a folder was claimed"))


def write_training(results: Path) -> str:
    """Write a collected training with its adapter; return its name."""
    folder = training_run.write_run_with_adapter(results / "20260101-000000-train")
    run = RunRecord.read(folder / "run.json")
    dataclasses.replace(run, run_id=folder.name).write(folder)
    weights = folder / "adapter" / "adapter_model.safetensors"
    dataclasses.replace(training_run.RECORD, adapter_sha256=sha256_of(weights)).write(folder)
    return folder.name


def arrange_bench(_: Path, monkeypatch: Patch) -> dict[str, Any]:
    monkeypatch.setattr(bench, "fleet_hosts", lambda _: [SimpleNamespace(name="worker-0", workdir="/w")])
    monkeypatch.setattr(BenchProgram, "inspect", lambda *_: {})
    return {"quick": True, "only": "baseline"}


def arrange_train(_: Path, monkeypatch: Patch) -> dict[str, Any]:
    monkeypatch.setattr(train, "fleet_hosts", lambda _: [SimpleNamespace(name="worker-0", workdir="/w")])
    monkeypatch.setattr(forecast, "probe_worker", lambda *_: make_probe())
    return {"workers": "1"}


def arrange_adapter(results: Path, **typed: Any) -> dict[str, Any]:
    return {"run": write_training(results), **typed}


# What is typed, or a function that arranges the fakes of a command and returns that.
CASES: dict[str, dict[str, Any] | Callable[[Path, Patch], dict[str, Any]]] = {
    "adapter.merge": lambda results, _: arrange_adapter(results, base="bf16", force=True),
    "bench": arrange_bench,
    "build": {"tmpdir": "/mnt/fss"},
    "cancel": {"run": RUN.run_id},
    "collect": {"run": RUN.run_id},
    "deploy": {},
    "image.archive": {"path": "/mnt/fss"},
    "image.verify": {},
    "model.demo": {},
    "model.fetch": {"model": "org/name", "tmpdir": "/mnt/fss"},
    "nodes": {"cordon": True},
    "push": {},
    "report": {"run": RUN.run_id},
    "teardown": {},
    "train": arrange_train,
    "vm.prune": {},
}


def test_every_command_that_changes_something_has_a_case() -> None:
    assert CASES.keys() == CHANGING.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_prints_its_plan_as_json_and_changes_nothing(
    name: str,
    results: Path,
    project: Path,
    context: Callable[..., Context],
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "deploy" and shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    case, command = CASES[name], CHANGING[name]
    assert isinstance(command, Command)
    typed = case(results, monkeypatch) if callable(case) else case
    invoked = context(text=SETTINGS)  # writes the file before the folder is compared
    plan_of(command, invoked, project.parent, capsys, **typed)
