"""Every command that changes something, with --dry-run --json: it prints its plan and changes nothing.

Files are compared before and after; the fakes of a cluster and of the build VM fail on any change. Not covered here:
the commands of Oracle's tenancy (tests/unit/tasks/oci), and plans of real machines (tests/system).
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
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

    def listed(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return []

    nodes = pods = pods_everywhere = list_fleet_objects = secrets = try_apply = listed

    def is_there(self, *_: object) -> bool:
        return True

    is_allowed = has_api_group = has_object = is_there


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
def _fakes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("image", "manifests"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))

    def opened(value: object) -> Callable[..., Any]:
        return lambda *_, **__: contextlib.nullcontext(value)

    for module in (deploy, node_list):
        monkeypatch.setattr(module, "open_cluster", opened(ClusterWithoutChanges()))
    for module in (archive, build, model, vm):
        monkeypatch.setattr(module, "build_vm", opened(HostWithoutChanges()))
    for module in (bench, train):
        monkeypatch.setattr(module, "fleet_hosts", lambda _: [SimpleNamespace(name="worker-0", workdir="/w")])
    monkeypatch.setattr(BenchProgram, "inspect", lambda *_: {})
    monkeypatch.setattr(forecast, "probe_worker", lambda *_: make_probe())
    monkeypatch.setattr("remote.image.engine.connect", opened(EngineWithoutChanges()))
    built = build.EngineImage(image_id="i", size=1, labels={})
    monkeypatch.setattr(build, "plan_build", lambda *_, **__: built)
    monkeypatch.setattr("remote.image.vm_jobs.VmWork.start", refuse("VmWork.start"))
    monkeypatch.setattr(model.vm_jobs, "claim", lambda *_, create=True: create and pytest.fail("a folder was claimed"))


def arrange_adapter(results: Path) -> dict[str, Any]:
    """Write a collected training with its adapter."""
    folder = training_run.write_run_with_adapter(results / "20260101-000000-train")
    run = RunRecord.read(folder / "run.json")
    dataclasses.replace(run, run_id=folder.name).write(folder)
    weights = folder / "adapter" / "adapter_model.safetensors"
    dataclasses.replace(training_run.RECORD, adapter_sha256=sha256_of(weights)).write(folder)
    return {"run": folder.name, "base": "bf16", "force": True}


# What is typed, or a function that writes what the command reads and returns that.
CASES: dict[str, dict[str, Any] | Callable[[Path], dict[str, Any]]] = {
    "adapter.merge": arrange_adapter,
    "bench": {"quick": True, "only": "baseline"},
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
    "train": {"workers": "1"},
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
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "deploy" and shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    case, command = CASES[name], CHANGING[name]
    assert isinstance(command, Command)
    typed = case(results) if callable(case) else case
    invoked = context(text=SETTINGS)  # writes the file before the folder is compared
    plan_of(command, invoked, project.parent, capsys, **typed)
