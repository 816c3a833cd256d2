"""The node that a Job's pods recorded as faulty is cordoned, and nothing else: its name is from the shared volume."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.records.run import RunRecord, TrainingJobEnd
from bench.records.status import TrialStatus
from remote.fleet.worker import DOWNLOAD_FOLDER
from tasks.fleet import gpu_faults
from tasks.settings.load import Settings
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.reports.training_run import write_run


@dataclasses.dataclass(kw_only=True)
class CordonedCluster(FakeCluster):
    """Cluster that records which nodes were cordoned."""

    cordoned: list[str] = dataclasses.field(default_factory=list)

    def cordon(self, node: str) -> None:
        self.cordoned.append(node)


@pytest.mark.parametrize(
    ("node", "expected"),
    [("node-1", ["node-1"]), ("node-9", []), ("--selector=x", []), ("", []), (None, [])],
)
def test_only_a_node_of_the_cluster_is_cordoned(
    node: str | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = CordonedCluster(live_nodes=[{"metadata": {"name": "node-1"}}, {"metadata": {"name": "node-2"}}])

    @contextlib.contextmanager
    def open_cluster(*_: object, **__: object) -> Iterator[CordonedCluster]:
        yield cluster

    monkeypatch.setattr(gpu_faults, "open_cluster", open_cluster)
    run = dataclasses.replace(
        RunRecord.read(write_run(tmp_path) / "run.json"), provenance={"inputs": {"job": {"turn": 2}}}
    )
    settings = Settings(root=tmp_path)
    gpu_faults.cordon_faulty_node(settings, run, tmp_path)
    (tmp_path / DOWNLOAD_FOLDER).mkdir()
    TrainingJobEnd(attempt=1, end=TrialStatus.LOST, reason="XID 79", node=node).write(tmp_path / DOWNLOAD_FOLDER, 2)
    gpu_faults.cordon_faulty_node(settings, run, tmp_path)
    assert cluster.cordoned == expected
