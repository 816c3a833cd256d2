"""The overlay `job-1gpu` trains: the Job's own command, in a pod under its own rules, writes a verified result.

The tiny model on the CPU stands in for a GPU; the tests' cluster for a real one. Not covered: `job-4gpu`, whose ranks
find each other by names that the tests' cluster does not resolve.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.result import RESULT_FILE, End, TrialResult
from tests.cluster import Cluster, unavailable
from tests.deploy.conftest import PASSWORD, ROOT, make_operator

pytestmark = pytest.mark.slow


def test_a_job_of_one_gpu_trains_and_leaves_its_result(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    why = unavailable()
    if why:
        pytest.skip(why)
    image = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    folders = (tiny_model.parent, tiny_data.parent)
    with Cluster(nodes=1, image_paths=folders, image_environment=image) as cluster:
        operator = make_operator(cluster, tmp_path)
        operator.settings |= {"model": {"path": str(tiny_model)}, "data": {"path": str(tiny_data)}}
        operator.set(overlay="job-1gpu", size=1, fss={"volume_handle": "ocid1.filesystem:10.0.0.1:/export"})
        operator.inv("deploy", stdin=f"{PASSWORD}\n")

        def done() -> bool:
            (job,) = operator.objects("jobs.batch")
            conditions = {one["type"]: one["status"] for one in job["status"].get("conditions", [])}
            assert conditions.get("Failed") != "True", operator.inv("logs")
            return conditions.get("Complete") == "True"

        cluster.wait_until(done, "the Job to complete", within_sec=200.0)
        (folder,) = (cluster.claim_folder("shared", operator.namespace) / "train").iterdir()
        result = TrialResult.read(folder / RESULT_FILE)
        assert (result.status, result.trial.name) == (End.SUCCEEDED, "optimized")
        assert folder.name == result.worker
        assert folder.name.startswith("train-0-")
        assert "1 of 1 pods are up" in operator.inv("status")
        # It is done; the same again leaves it so, and --replace asks for another.
        assert "nothing to do" in operator.inv("deploy")
        assert "replace    job/train  (it completed)" in operator.inv("deploy", "--dry-run", "--replace")
        said = operator.inv("teardown", "--yes")
        assert f"persistentvolume/qlora-fleet-{operator.namespace}" in said
        assert "stays: " in said
        assert cluster.objects("persistentvolumes") == []
