"""`inv serve`: vLLM's server in the cluster, with a training's base model and adapter; `inv serve.stop` ends it.

The server is one pod. Its first container waits for the adapter, which is sent while the pod comes up; on a shared
volume it stays, so that a pod's replacement finds it. The API's key is made here, in memory, and kept by the cluster.
"""

import contextlib
import dataclasses
import json
import secrets
import tempfile
from pathlib import Path

from invoke.context import Context

from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from remote.cluster.client import Cluster
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import FIRST, SERVE
from remote.cluster.manifests import Image
from remote.cluster.pull_secret import key_secret
from remote.hosts.command import Secret
from remote.hosts.host import HostError
from remote.jobs.agent import Agent
from remote.jobs.transfer import push
from remote.pods.host import PodHost
from tasks.adapter.artifact import TrainedAdapter, open_training
from tasks.clients.cluster import cluster_of
from tasks.clients.workers import pods_of_component
from tasks.cluster import deploy
from tasks.errors import UsageError
from tasks.settings.load import Settings, load

CLUSTER = "cluster"  # instead of an address: the server that `inv serve` has deployed
KEY_SECRET, VOLUME, LAID = "serve-key", "/shared-data", "/scratch/serve"
RANKS = (8, 16, 32, 64, 128, 256, 512)  # that vLLM makes room for
_DELETE_SEC = 120.0


def start_server(
    context: Context, run: str | None, *, dry_run: bool, yes: bool, discard_results: bool, plain: bool
) -> None:
    settings = load(context)
    image = server_image(settings)
    trained = open_training(settings, run)
    changed = {"overlay": SERVE, "gpus_per_pod": 1}
    choices = deploy.DeployOptions(dry_run=dry_run, yes=yes, discard_results=discard_results, plain=plain, replace=True)
    values: dict[str, str | int | list[str]] = {
        "serve": json.dumps(request(settings, trained), sort_keys=True),
        "server_arguments": arguments(settings, trained),
        "run_id": trained.run.run_id,
    }
    delivery = AdapterUpload(settings, trained)
    deploy.apply(
        settings.model_copy(update={"cluster": settings.cluster.model_copy(update=changed)}),
        choices,
        deploy.DeployHooks(values=values, server=image, before_pods=_with_key, look=delivery.look, again="inv serve"),
    )
    if not dry_run:
        namespace = settings.cluster.namespace
        print(
            f"serving run {trained.run.run_id} as {settings.serve.name}, within the cluster at http://serve.{namespace}:8000"
        )
        print(f"its key is the secret {KEY_SECRET}; next: inv serve.check {CLUSTER}, or inv chat {CLUSTER}")


def server_image(settings: Settings) -> Image:
    """The image of `serve.image`. Raises UsageError."""
    if settings.serve.image is None:
        raise UsageError(
            "serve.image: not set; name vLLM's server with its digest: docker.io/vllm/vllm-openai@sha256:..."
        )
    try:
        return Image.parse(settings.serve.image)
    except ValueError as error:
        raise UsageError(f"serve.image: {error}, and a tag can move; write HOST/REPOSITORY@sha256:...") from None


def request(settings: Settings, trained: TrainedAdapter) -> dict[str, object]:
    """What the pod's first container is asked for (`bench.adapter.stage`). Raises UsageError."""
    model = trained.trial.model if trained.run.fleet_kind == "pods" else settings.model.path
    if not Path(model).is_absolute():
        raise UsageError(f"model.path: {model}: expected an absolute path, as the server's pod sees it")
    return {
        "model": model,
        "model_sha256": trained.model_sha256,
        "adapter": place_of(trained),
        "adapter_sha256": str(trained.record.adapter_sha256),
        "into": LAID,
        "volumes": [VOLUME],
    }


def place_of(trained: TrainedAdapter) -> str:
    """The adapter's folder in the pod."""
    return f"{VOLUME}/adapters/{trained.record.adapter_sha256}"


def arguments(settings: Settings, trained: TrainedAdapter) -> list[str]:
    """Those of `vllm serve`. Raises UsageError.

    A base that was trained on in NF4 is loaded as NF4: vLLM rounds with double quantization, as the training does. The
    tokenizer and its chat template are the adapter's copies of the training's.
    """
    trial = trained.trial
    rank = next((most for most in RANKS if most >= trial.lora_rank), None)
    if rank is None:
        raise UsageError(
            f"run {trained.run.run_id}: vLLM serves adapters of rank {RANKS[-1]} at most, not {trial.lora_rank}"
        )
    words = [f"{LAID}/base", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "base"]  # noqa: S104 - a pod's
    words += ["--dtype", "bfloat16", "--tokenizer", f"{LAID}/adapter"]
    words += ["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", f"{settings.serve.name}={LAID}/adapter"]
    if trial.base_precision == "nf4":
        words += ["--quantization", "bitsandbytes", "--load-format", "bitsandbytes"]
    return [*words, *settings.serve.arguments]


def _with_key(cluster: Cluster) -> None:
    if cluster.has_secret(KEY_SECRET):
        return
    made, hidden = key_secret(
        name=KEY_SECRET, namespace=cluster.target.namespace, key=Secret(secrets.token_urlsafe(32))
    )
    cluster.apply([made], take_over=True, secrets=hidden)
    print(f"wrote secret/{KEY_SECRET}", flush=True)


class AdapterUpload:
    """Sends the adapter to each pod that waits for it."""

    def __init__(self, settings: Settings, trained: TrainedAdapter) -> None:
        (self._host,) = pods_of_component(settings, SERVE, container=FIRST, starting=True)
        self._trained, self._has = trained, set[str]()

    def look(self, state: PodFleet) -> None:
        """Called at each look at the pods; one that takes no commands yet is tried again at the next."""
        for row in state.rows:
            if row.pod is not None and row.state not in ("Ready", "Running", "Terminating"):
                with contextlib.suppress(HostError):
                    self._send(row.pod)
            self._host.pods.invalidate()

    def _send(self, pod: str) -> None:
        """Raises HostError, also where the container has all it waits for and ends before the last answer is here."""
        place, adapter = place_of(self._trained), self._trained.adapter
        push(Agent(self._host), adapter, place)
        if pod not in self._has:
            self._has.add(pod)
            print(f"sent the adapter to {pod}", flush=True)
        with tempfile.TemporaryDirectory() as folder:  # last, as its sign that all are there
            sums = Path(folder, SUMS_FILE)
            lines = [f"{sha256_of(path)}  {path.name}" for path in sorted(adapter.iterdir()) if path.is_file()]
            sums.write_text("\n".join(lines) + "\n", encoding="utf-8")
            push(Agent(self._host), {SUMS_FILE: sums}, place)


def server_pod(settings: Settings) -> PodHost:
    """The pod of the server, as a host."""
    (host,) = pods_of_component(settings, SERVE)
    return dataclasses.replace(host, name="the server of `inv serve`")


def stop_server(context: Context, *, yes: bool) -> None:
    settings = load(context)
    names = {"Job": SERVE, "Service": SERVE}
    with cluster_of(settings, changes=True, yes=yes) as cluster:
        found = [
            one for kind, name in names.items() for one in cluster.list_of(kind) if one["metadata"]["name"] == name
        ]
        found += [secret for secret in cluster.secrets() if secret["metadata"]["name"] == KEY_SECRET]
        if not found:
            print("nothing to do: no server is deployed")
            return
        cluster.delete(found, wait_sec=_DELETE_SEC)
    print("the server is stopped and its key is gone; `inv deploy` brings the workers back")
