"""The overlays that train: the Job's own command, in pods under its own rules, writes a verified result.

`job-1gpu` in one pod; `job-4gpu` with torchrun in four, which find each other by name, and what a rank that is killed
does to them. The tiny model on the CPU and gloo stand in for GPUs and NCCL; the tests' cluster for a real one, with a
hosts file for its DNS, and all pods on one network: the port where ranks meet is another one here, since a torch store
listens on every address of the machine.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.records.layout import RESULT_FILE
from bench.records.result import End, TrialResult
from tests.support.forked import ForkServer
from tests.support.kubernetes import Cluster, unavailable
from tests.support.machines.ports import free_ports
from tests.system.cluster.conftest import PASSWORD, ROOT, Operator, make_operator

# What its waits may take in all, on a busy machine, is more than any other test's.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FSS = {"volume_handle": "ocid1.filesystem:10.0.0.1:/export"}
RANKS = 4


@pytest.fixture(scope="module")
def training_cluster(tiny_model: Path, tiny_data: Path) -> Iterator[Cluster]:
    why = unavailable()
    if why:
        pytest.skip(why)
    image = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "QLORA_FLEET_SILENCE_SEC": "20",
    }
    folders = (tiny_model.parent, tiny_data.parent)
    with Cluster(nodes=RANKS, image_paths=folders, image_environment=image) as cluster:
        yield cluster


@pytest.fixture
def trainer(
    training_cluster: Cluster, tiny_model: Path, tiny_data: Path, tmp_path: Path, inv_server: ForkServer
) -> Iterator[Operator]:
    """An operator whose overlays train the tiny model, in a namespace of its own."""
    operator = make_operator(training_cluster, tmp_path, inv_server)
    operator.settings |= {"model": {"path": str(tiny_model)}, "data": {"path": str(tiny_data)}}
    yield operator
    operator.inv("teardown", "--yes", "--discard-results")


def meet_at(operator: Operator, port: int) -> None:
    """The operator's own manifests, in which the ranks meet at this port."""
    manifests = operator.project / "manifests"
    manifests.unlink()
    shutil.copytree(ROOT / "manifests", manifests)
    job = manifests / "overlays" / "job-4gpu" / "job.yaml"
    text = job.read_text()
    assert "QLORA_FLEET_RANK0_PORT=29500" in text
    job.write_text(text.replace("QLORA_FLEET_RANK0_PORT=29500", f"QLORA_FLEET_RANK0_PORT={port}"))


def conditions(operator: Operator) -> dict[str, str]:
    (job,) = operator.objects("jobs.batch")
    return {one["type"]: one["status"] for one in job["status"].get("conditions", [])}


def results(operator: Operator) -> list[TrialResult]:
    """What lies on the shared volume."""
    folder = operator.cluster.claim_folder("shared", operator.namespace) / "train"
    return [TrialResult.read(path) for path in sorted(folder.glob(f"*/{RESULT_FILE}"))]


def ranks(operator: Operator) -> dict[str, list[int]]:
    """The pids of the ranks of torchrun that run, by pod."""
    found = {}
    for pod in operator.objects("pods"):
        if pod.get("status", {}).get("phase") == "Running":
            name = pod["metadata"]["name"]
            with contextlib.suppress(RuntimeError):  # it went away in between
                words = operator.cluster.processes(name, operator.namespace)
                own = [
                    pid
                    for pid, argv in words.items()
                    if "bench.kinds.distributed.rank" in argv and "bench.kinds.distributed.torchrun" not in argv
                ]
                found[name] = own
    return found


def test_a_job_of_one_gpu_trains_and_leaves_its_result(trainer: Operator) -> None:
    cluster = trainer.cluster
    trainer.set(overlay="job-1gpu", size=1, fss=FSS)
    trainer.inv("deploy", stdin=f"{PASSWORD}\n")

    def done() -> bool:
        now = conditions(trainer)
        assert now.get("Failed") != "True", trainer.inv("logs")
        return now.get("Complete") == "True"

    cluster.wait_until(done, "the Job to complete", within_sec=200.0)
    (result,) = results(trainer)
    assert (result.status, result.trial.name) == (End.SUCCEEDED, "optimized")
    assert (result.worker or "").startswith("train-0-")
    assert "1 of 1 pods are up" in trainer.inv("status")
    # It is done; the same again leaves it so, and --replace asks for another.
    assert "nothing to do" in trainer.inv("deploy")
    assert "replace    job/train  (it completed)" in trainer.inv("deploy", "--dry-run", "--replace")
    said = trainer.inv("teardown", "--yes")
    assert f"persistentvolume/qlora-fleet-{trainer.namespace}" in said
    assert "stays: " in said
    assert cluster.objects("persistentvolumes") == []


def test_a_job_of_four_gpus_trains_until_a_rank_dies_which_stops_all_and_is_named(trainer: Operator) -> None:
    cluster = trainer.cluster
    meet_at(trainer, free_ports())
    trainer.set(overlay="job-4gpu", fss=FSS)
    trainer.inv("deploy", stdin=f"{PASSWORD}\n")
    # The first time a rank is killed while it measures, the second time none is.
    cluster.wait_until(lambda: sum(map(len, ranks(trainer).values())) == RANKS, "four ranks", within_sec=120.0)
    cluster.wait_until(lambda: "measure" in trainer.inv("logs", "--tail", "1000"), "steps", within_sec=120.0)
    victim = next(name for name in ranks(trainer) if name.startswith("train-2-"))
    (pid,) = ranks(trainer)[victim]
    cluster.faults.kill(victim, pid, trainer.namespace)
    cluster.wait_until(lambda: conditions(trainer).get("Failed") == "True", "the Job to fail", within_sec=120.0)
    cluster.wait_until(lambda: not ranks(trainer), "every pod to end")
    cluster.wait_until(lambda: results(trainer), "what the first pod writes")
    (result,) = results(trainer)
    assert (result.worker or "").startswith("train-0-"), "only the first pod writes"
    assert result.status is not End.SUCCEEDED
    assert "rank 2" in (result.reason or "")
    assert "SIGKILL" in (result.reason or "")
    # It was killed and said nothing; what the others felt stands beside it.
    assert any("rank 0: " in line for line in result.log_tail), result.log_tail
    assert "`inv deploy --replace` starts it again" in trainer.inv("status")
    assert "replace    job/train  (it failed)" in trainer.inv("deploy", "--dry-run", "--replace")
    trainer.inv("deploy", "--replace")

    def done() -> bool:
        now = conditions(trainer)
        assert now.get("Failed") != "True", trainer.inv("logs")
        return now.get("Complete") == "True"

    cluster.wait_until(done, "the Job to complete", within_sec=200.0)
    good = [result for result in results(trainer) if result.status is End.SUCCEEDED]
    assert len(good) == 1
    assert {m.context.get("rank") for m in good[0].measurements if m.name == "step_time_sec"} >= set(range(RANKS))
