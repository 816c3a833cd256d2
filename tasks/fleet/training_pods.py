"""A training in the pods of a Kubernetes Job: its pods, its end, and a pod that reads its volume.

Its state is read through a pod of the training, a worker, or, as the pods of a training that has ended run no commands
and the Job has replaced the workers, a temporary pod without a GPU, with the image and the volumes of the Job's pods.
After a cancelled training no Job is left; its manifests are then rendered again. Deleting the Job leaves its pods time
to write a checkpoint.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode
from remote.cluster.diagnosis.pods import training_end
from remote.cluster.labels import RUN_ANNOTATION, TRAIN, Object
from remote.cluster.manifests import READER, make_reader_job, render
from remote.cluster.namespace_client import KINDS, Cluster
from remote.cluster.plan import has_ended, identity
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host, HostError, collapse_whitespace
from remote.hosts.pods.host import PodHost
from tasks.clients.registry import resolve_image
from tasks.clients.target_cluster import (
    MANIFESTS,
    manifest_values,
    place_pods,
    translate_cluster_errors,
)
from tasks.clients.workers import component_hosts, pod_hosts
from tasks.errors import RetryableError, UsageError
from tasks.settings.layers import Settings

_READER_NEEDS = ("ConfigMap", "NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "ServiceAccount")
_PROBE_TIMEOUT_SEC, _DELETE_TIMEOUT_SEC = 30.0, 180.0
_POLL_SEC = 1.0


class PodsJob:
    """The Job or JobSet of a training in this cluster, as `HostJob` is one on a host."""

    outlives_end = True  # a pod without a volume waits until it is collected

    def __init__(self, settings: Settings, run: RunRecord, cluster: Cluster) -> None:
        self._settings, self._run, self._cluster = settings, run, cluster

    @cached_property
    def hosts(self) -> Sequence[PodHost]:
        """The training's pods, with the names of the run's workers."""
        return component_hosts(self._settings, TRAIN, size=len(self._run.workers))

    def end(self) -> Outcome | None:
        """Return how it counts if no end is on the volume; None while it goes on.

        The pods repeat the end that is on the volume; the status of the Job does not tell a failure from a success.
        """
        job = self._find()
        own = [pod for pod in self._cluster.pods() if _run_of(pod) == self._run.run_id]
        end = next(filter(None, map(training_end, own)), None)
        if end is None and job is not None and not has_ended(job):
            return None
        return Outcome.of(ReasonCode.WORKER_LOST, end or "its pods are gone")

    def stop(self) -> None:
        """Delete the Job and wait for its pods, which write a checkpoint."""
        if (job := self._find()) is not None:
            print(f"deleting {job['kind'].lower()}/{job['metadata']['name']} and waiting for its pods", flush=True)
            self._cluster.delete([job], wait_sec=_DELETE_TIMEOUT_SEC)

    def _find(self) -> Object | None:
        jobs = (job for kind in ("JobSet", "Job") for job in self._cluster.list_fleet_objects(kind))
        return next((job for job in jobs if _run_of(job) == self._run.run_id), None)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Host]:
        """Yield a host that sees the volume. Raises RetryableError, and UsageError if no pod can."""
        fleet = self._settings.fleet
        for pod in (*self.hosts, *pod_hosts(self._cluster.target, fleet.pods, fleet.size)):
            if _probe_error(pod) is None:
                yield pod
                return
        with _temporary_reader(self._settings, self._cluster, self._run) as host:
            yield host


def _run_of(resource: Object) -> str | None:
    """Return the run of a training's Job or pod."""
    return (resource["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)


@contextlib.contextmanager
def _temporary_reader(settings: Settings, cluster: Cluster, run: RunRecord) -> Iterator[Host]:
    jobs = [job for kind in ("Job", "JobSet") for job in cluster.list_fleet_objects(kind)]
    reader_objects = _reader_objects(jobs) or _rendered_reader_objects(settings, cluster, run)
    if not reader_objects:
        raise UsageError(
            f"run {run.run_id}: its pod is gone, and no other can read what it wrote, as cluster.volume.handle is null",
            remedy="if it had a volume, set that as it was, then rerun the command",
        )
    print(f"creating pod {READER} to read the volume", flush=True)
    cluster.apply(reader_objects)
    try:
        (host,) = component_hosts(settings, READER)
        deadline = time.monotonic() + settings.cluster.ready_timeout_sec
        while (error := _probe_error(host)) is not None:
            if time.monotonic() > deadline:
                problem = next(iter(cluster.pod_fleet([READER]).all_findings), None) or error
                raise RetryableError(f"{problem} (for {settings.cluster.ready_timeout_sec:g} s)")
            time.sleep(_POLL_SEC)
            if not cluster.has_object(KINDS["Job"], READER):  # another command has used it, and deleted it
                cluster.apply(reader_objects)
        yield host
    finally:
        cluster.delete(reader_objects, wait_sec=_DELETE_TIMEOUT_SEC)


def _reader_objects(jobs: Sequence[Object]) -> Sequence[Object]:
    """Return a reader with the volumes of the first Job that mounts a claim; empty if none does."""
    return [reader for job in jobs if (reader := make_reader_job(job)) is not None][:1]


def _rendered_reader_objects(settings: Settings, cluster: Cluster, run: RunRecord) -> Sequence[Object]:
    """Return a reader made from the run's Job as rendered with the current settings, and the objects that it lacks.

    After `inv teardown` it lacks all of them. Raises UsageError without an image.
    """
    placement = place_pods(settings.cluster, cluster.provider, overlay=run.provenance["inputs"]["job"]["overlay"])
    values = manifest_values(settings, placement, resolve_image(settings))
    job: dict[str, str | int] = {"job_spec": "{}", "run_id": run.run_id, "size": len(run.workers)}
    values = dataclasses.replace(values, settings={**values.settings, **job})
    with translate_cluster_errors():
        desired = render(values, settings.root / MANIFESTS)
    reader = _reader_objects([resource for resource in desired if resource["kind"] in ("Job", "JobSet")])
    existing = {identity(resource) for resource in cluster.live_objects()}
    absent = [item for item in desired if item["kind"] in _READER_NEEDS and identity(item) not in existing]
    if all(item["kind"] != "PersistentVolumeClaim" for item in absent):  # its volume may be hidden from this account
        absent = [item for item in absent if item["kind"] != "PersistentVolume"]
    return [*absent, *reader] if reader else []


def _probe_error(host: Host) -> str | None:
    """Return why this host cannot run commands; None if it can."""
    try:
        host.run(Command(argv=(*host.python, "-c", "")), timeout_sec=_PROBE_TIMEOUT_SEC)
    except HostError as error:
        return collapse_whitespace(error)
    return None
