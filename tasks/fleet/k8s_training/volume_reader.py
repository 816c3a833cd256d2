"""Access to a training's volume through a pod: a pod of the training, a worker, or a temporary reader pod.

The pods of a training that has ended run no commands, and `inv train --job` has replaced the workers. In that case a
temporary pod without a GPU is created, with the image and the volumes of the Job's pods. After a cancelled training no
Job is left; its manifests are then rendered again.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

from bench.records.run import RunRecord
from remote.cluster.client import Cluster
from remote.cluster.labels import Object
from remote.cluster.manifests import render
from remote.cluster.plan import identity
from remote.cluster.volume_reader_pod import READER, make_reader_job
from remote.hosts.base import Host, HostError, collapse_whitespace
from remote.hosts.command import Command
from remote.hosts.pods.host import PodHost
from tasks.clients.cluster import (
    MANIFESTS,
    manifest_values,
    open_cluster,
    resolve_provider,
    resolve_target,
    translate_cluster_errors,
)
from tasks.clients.registry import resolve_image
from tasks.clients.workers import component_hosts, pod_hosts
from tasks.errors import RetryableError, UsageError
from tasks.settings.load import Settings

TRAIN_COMPONENT = "train"
_PROBE_TIMEOUT_SEC, _POLL_SEC, _DELETE_TIMEOUT_SEC = 30.0, 1.0, 60.0


def is_k8s_training(run: RunRecord) -> bool:
    """Check whether this training runs as a Kubernetes Job."""
    return "job" in run.provenance.get("inputs", {})


def training_pods(settings: Settings, run: RunRecord) -> list[PodHost]:
    """Return the training's pods as hosts with the names of the run's workers."""
    return component_hosts(settings, TRAIN_COMPONENT, size=len(run.workers))


@contextlib.contextmanager
def open_reader_pod(settings: Settings, run: RunRecord) -> Iterator[Host]:
    """Yield a host that sees the volume. Raises RetryableError, and the errors of `open_cluster`."""
    for host in (*training_pods(settings, run), *pod_hosts(settings, resolve_target(settings))):
        if _probe_error(host) is None:
            yield host
            return
    with open_cluster(settings, changes=True) as cluster, _temporary_reader_pod(settings, cluster, run) as reader:
        yield reader


@contextlib.contextmanager
def _temporary_reader_pod(settings: Settings, cluster: Cluster, run: RunRecord) -> Iterator[Host]:
    jobs = [job for kind in ("Job", "JobSet") for job in cluster.list_fleet_objects(kind)]
    reader_objects = _reader_objects(jobs) or _rendered_reader_objects(settings, cluster, run)
    if not reader_objects:
        raise UsageError(
            f"run {run.run_id}: no pod can read the volume, as cluster.volume.handle is null",
            remedy="set it as it was for the training, then rerun the command",
        )
    print(f"creating pod {READER} to read the volume", flush=True)
    cluster.apply(reader_objects)
    try:
        (host,) = component_hosts(settings, READER)
        deadline = time.monotonic() + settings.cluster.ready_timeout_sec
        while (error := _probe_error(host)) is not None:
            if time.monotonic() > deadline:
                raise RetryableError(
                    f"{error} (for {settings.cluster.ready_timeout_sec:g} s)", remedy="see `inv status`"
                )
            time.sleep(_POLL_SEC)
        yield host
    finally:
        cluster.delete(reader_objects, wait_sec=_DELETE_TIMEOUT_SEC)


def _reader_objects(jobs: Sequence[Object]) -> Sequence[Object]:
    """Return a reader with the volumes of the first Job that mounts a claim; empty if none does."""
    return [reader for job in jobs if (reader := make_reader_job(job)) is not None][:1]


def _rendered_reader_objects(settings: Settings, cluster_client: Cluster, run: RunRecord) -> Sequence[Object]:
    """Return a reader made from the run's Job as rendered with the current settings, and ConfigMaps that it lacks.

    Raises UsageError without an image.
    """
    cluster = settings.cluster.model_copy(update={"overlay": run.provenance["inputs"]["job"]["overlay"]})
    settings = resolve_provider(settings.model_copy(update={"cluster": cluster}), cluster_client)
    values = manifest_values(settings, resolve_image(settings))
    order: dict[str, str | int | list[str]] = {"order": "{}", "run_id": run.run_id, "size": len(run.workers)}
    values = dataclasses.replace(values, extra_settings={**values.extra_settings, **order})
    with translate_cluster_errors():
        desired = render(values, settings.root / MANIFESTS)
    reader = _reader_objects([resource for resource in desired if resource["kind"] in ("Job", "JobSet")])
    existing = {identity(resource) for resource in cluster_client.live_objects()}
    # A ConfigMap's name has the hash of its content, which depends on the settings.
    maps = [resource for resource in desired if resource["kind"] == "ConfigMap" and identity(resource) not in existing]
    return [*maps, *reader] if reader else []


def _probe_error(host: Host) -> str | None:
    """Return why this host cannot run commands; None if it can."""
    try:
        host.run(Command(argv=(*host.python, "-c", "")), timeout_sec=_PROBE_TIMEOUT_SEC)
    except HostError as error:
        return collapse_whitespace(error)
    return None
