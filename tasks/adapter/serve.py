"""`inv serve`: run vLLM's server in the cluster, with a training's base model and adapter; `inv serve.stop` stops it.

The server is one pod. Its first container waits for the adapter, which is uploaded while the pod starts. On a shared
volume the adapter stays, so that a pod's replacement finds it. The API's key is generated here, in memory, and stored
only in the cluster.
"""

import contextlib
import dataclasses
import json
import secrets
from pathlib import Path

from invoke.context import Context

from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from bench.records.scratch_folders import scratch_folder
from remote.cluster.client import Cluster
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import ADAPTER_CONTAINER, SERVE
from remote.cluster.manifests import Image
from remote.cluster.pull_secret import key_secret
from remote.hosts.base import HostError
from remote.hosts.command import Secret
from remote.hosts.pods.host import PodHost
from remote.jobs.agent import Agent
from remote.jobs.transfer import push
from tasks.adapter.artifact import TrainedAdapter, open_training
from tasks.clients.cluster import open_cluster
from tasks.clients.workers import component_hosts
from tasks.cluster import deploy
from tasks.errors import UsageError
from tasks.settings.load import Settings, load

CLUSTER_URL = "cluster"  # stands for the server that `inv serve` deployed
KEY_SECRET, VOLUME, SERVE_FOLDER = "serve-key", "/shared-data", "/scratch/serve"
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 512)  # the values of --max-lora-rank
_DELETE_TIMEOUT_SEC = 120.0


def start_server(
    context: Context, run: str | None, *, dry_run: bool, yes: bool, discard_results: bool, plain: bool
) -> None:
    settings = load(context)
    image = configured_image(settings)
    trained = open_training(settings, run)
    section = settings.cluster.model_copy(update={"overlay": SERVE, "gpus_per_pod": 1})
    options = deploy.DeployOptions(dry_run=dry_run, yes=yes, discard_results=discard_results, plain=plain, force=True)
    values: dict[str, str | int | list[str]] = {
        "serve": json.dumps(stage_request(settings, trained), sort_keys=True),
        "server_arguments": vllm_arguments(settings, trained),
        "run_id": trained.run.run_id,
    }
    upload = AdapterUpload(settings, trained)
    deploy.apply(
        settings.model_copy(update={"cluster": section}),
        options,
        deploy.DeployHooks(
            values=values,
            server=image,
            before_pods=_create_key,
            on_state=upload.send_to_waiting,
            retry_command="inv serve",
        ),
    )
    if not dry_run:
        address = f"http://serve.{settings.cluster.namespace}:8000"
        print(f"serving run {trained.run.run_id} as {settings.serve.name}, within the cluster at {address}")
        print(f"its key is the secret {KEY_SECRET}; next: inv serve.check {CLUSTER_URL}, or inv chat {CLUSTER_URL}")


def configured_image(settings: Settings) -> Image:
    """Return the image of `serve.image`. Raises UsageError."""
    if settings.serve.image is None:
        raise UsageError(
            "serve.image: not set",
            remedy="set vLLM's server image with its digest: docker.io/vllm/vllm-openai@sha256:...",
        )
    try:
        return Image.parse(settings.serve.image)
    except ValueError as error:
        raise UsageError(
            f"serve.image: {error}, and a tag can move", remedy="write HOST/REPOSITORY@sha256:..."
        ) from error


def stage_request(settings: Settings, trained: TrainedAdapter) -> dict[str, object]:
    """Return the request to the pod's first container (`bench.adapter.stage`). Raises UsageError."""
    model = trained.trial.model if trained.run.fleet_kind == "pods" else settings.model.path
    if not Path(model).is_absolute():
        raise UsageError(f"model.path: {model}: expected an absolute path in the server's pod")
    return {
        "model": model,
        "model_sha256": trained.model_sha256,
        "adapter": adapter_folder(trained),
        "adapter_sha256": str(trained.record.adapter_sha256),
        "into": SERVE_FOLDER,
        "volumes": [VOLUME],
    }


def adapter_folder(trained: TrainedAdapter) -> str:
    """Return the adapter's folder in the pod."""
    return f"{VOLUME}/adapters/{trained.record.adapter_sha256}"


def vllm_arguments(settings: Settings, trained: TrainedAdapter) -> list[str]:
    """Return the arguments of `vllm serve`. Raises UsageError.

    A base that the training used in NF4 is loaded as NF4: vLLM quantizes it with double quantization, like the
    training. Tokenizer and chat template are the adapter's copies from the training.
    """
    trial = trained.trial
    max_rank = next((rank for rank in VLLM_RANKS if rank >= trial.lora_rank), None)
    if max_rank is None:
        raise UsageError(
            f"run {trained.run.run_id}: vLLM serves adapters up to rank {VLLM_RANKS[-1]}, not {trial.lora_rank}"
        )
    argv = [f"{SERVE_FOLDER}/base", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "base"]  # noqa: S104 - a pod's
    argv += ["--dtype", "bfloat16", "--tokenizer", f"{SERVE_FOLDER}/adapter"]
    argv += ["--enable-lora", "--max-lora-rank", str(max_rank)]
    argv += ["--lora-modules", f"{settings.serve.name}={SERVE_FOLDER}/adapter"]
    if trial.base_precision == "nf4":
        argv += ["--quantization", "bitsandbytes", "--load-format", "bitsandbytes"]
    return [*argv, *settings.serve.arguments]


def _create_key(cluster: Cluster) -> None:
    if cluster.has_secret(KEY_SECRET):
        return
    secret_object, hidden = key_secret(
        name=KEY_SECRET, namespace=cluster.target.namespace, key=Secret(secrets.token_urlsafe(32))
    )
    cluster.apply([secret_object], force_conflicts=True, secrets=hidden)
    print(f"wrote secret/{KEY_SECRET}", flush=True)


class AdapterUpload:
    """Upload of the adapter to each pod that waits for it."""

    def __init__(self, settings: Settings, trained: TrainedAdapter) -> None:
        (self._host,) = component_hosts(settings, SERVE, container=ADAPTER_CONTAINER, include_starting=True)
        self._trained, self._received = trained, set[str]()

    def send_to_waiting(self, state: PodFleet) -> None:
        """Upload the adapter to the waiting pods; retry those without a running container on the next state."""
        for row in state.rows:
            if row.pod is not None and row.state not in ("Ready", "Running", "Terminating"):
                with contextlib.suppress(HostError):
                    self._send(row.pod)
            self._host.pods.invalidate()

    def _send(self, pod: str) -> None:
        """Upload the adapter and its checksums to the pod.

        Raises HostError, also if the container has everything and ends before its last answer arrives.
        """
        folder_in_pod, adapter = adapter_folder(self._trained), self._trained.adapter
        push(Agent(self._host), adapter, folder_in_pod)
        if pod not in self._received:
            self._received.add(pod)
            print(f"sent the adapter to {pod}", flush=True)
        with scratch_folder("qlora-fleet-adapter-") as folder:  # last: the container waits for the checksum file
            sums = folder / SUMS_FILE
            lines = [f"{sha256_of(path)}  {path.name}" for path in sorted(adapter.iterdir()) if path.is_file()]
            sums.write_text("\n".join(lines) + "\n", encoding="utf-8")
            push(Agent(self._host), {SUMS_FILE: sums}, folder_in_pod)


def server_pod(settings: Settings) -> PodHost:
    """Return the pod of the server as a host."""
    (host,) = component_hosts(settings, SERVE)
    return dataclasses.replace(host, name="the server of `inv serve`")


def stop_server(context: Context, *, yes: bool) -> None:
    settings = load(context)
    names = {"Job": SERVE, "Service": SERVE}
    with open_cluster(settings, changes=True, yes=yes) as cluster:
        objects = [
            item
            for kind, name in names.items()
            for item in cluster.list_fleet_objects(kind)
            if item["metadata"]["name"] == name
        ]
        objects += [secret for secret in cluster.secrets() if secret["metadata"]["name"] == KEY_SECRET]
        if not objects:
            print("nothing to do: no server is deployed")
            return
        cluster.delete(objects, wait_sec=_DELETE_TIMEOUT_SEC)
    print("stopped the server and deleted its key; `inv deploy` restarts the workers")
