"""`inv serve`: run vLLM's server in the cluster, with a training's base model and adapter; `inv serve.stop` stops it.

The server is one pod. Its first container waits for the adapter, or for the merged model with `--merged`, which is
uploaded while the pod starts. On a shared volume it stays, so that a pod's replacement finds it. The API's key is
generated here, in memory, and stored only in the cluster.

Before the workers are changed, a pod without a GPU reads the versions in the server's image, if its vLLM must load an
NF4 base. It runs on a node that may run the server later; the image is pulled while the workers still run.
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
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import ADAPTER_CONTAINER, SERVE
from remote.cluster.manifests import Image, key_secret
from remote.cluster.namespace_client import Cluster
from remote.cluster.settings import ClusterSection
from remote.hosts.bundle import read_source
from remote.hosts.command import Command, Secret
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import HostError
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.kubectl import Forbidden
from remote.jobs.job import Agent
from remote.jobs.transfer import push
from remote.serving import ServerSoftware
from tasks.adapter.artifact import VOLUME, TrainedAdapter, open_training
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command
from tasks.cli.waiting import Wait
from tasks.clients.pod_check import run_pod_check
from tasks.clients.target_cluster import open_cluster, place_pods
from tasks.clients.workers import component_hosts
from tasks.cluster import deploy
from tasks.cluster.commands import DeployOptions
from tasks.errors import UsageError, escape_controls
from tasks.settings.layers import Settings, load

CLUSTER_URL = "cluster"  # stands for the server that `inv serve` deployed
KEY_SECRET, SERVE_FOLDER = "serve-key", "/scratch/serve"
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 512)  # the values of --max-lora-rank
_DELETE_TIMEOUT_SEC, _PROBE_TIMEOUT_SEC = 120.0, 30.0
VERSIONS_PROGRAM = "remote.agent.pods.server_software"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedFiles:
    """Folder that the server gets: the adapter, or the merged model. `local` is None if it is on the volume already."""

    local: Path | None
    in_pod: str
    is_merged: bool


def start_server(
    context: Context, run: str | None, *, merged: bool, dry_run: bool, yes: bool, discard_results: bool, plain: bool
) -> CommandResult | None:
    settings = load(context)
    image = configured_image(settings)
    trained = open_training(settings, run)
    files = merged_files(trained) if merged else adapter_files(trained)
    options = DeployOptions(dry_run=dry_run, yes=yes, discard_results=discard_results, plain=plain, force=True)
    values: dict[str, str | int | list[str]] = {
        "serve": json.dumps(stage_request(settings, trained, files), sort_keys=True),
        "server_arguments": merged_arguments(settings) if merged else vllm_arguments(settings, trained),
        "run_id": trained.run.run_id,
    }
    upload = FilesUpload(settings, files)
    needs_nf4 = not merged and trained.trial.base_precision == "nf4"
    retry_command = format_command("serve", run=run, merged=merged)
    nf4_check = NF4Check(settings.cluster, image, merge_command(trained), retry_command) if needs_nf4 else None

    def before_pods(cluster: Cluster) -> None:
        if nf4_check is not None:
            nf4_check.run(cluster)
        _create_key(cluster)

    answer = deploy.apply(
        settings,
        options,
        deploy.DeployHooks(
            overlay=SERVE,
            gpus=1,
            values=values,
            server=image,
            on_start=lambda cluster: None if nf4_check is None else nf4_check.run_early(cluster),
            before_pods=before_pods,
            on_state=upload.send_to_waiting,
            retry_command=retry_command,
        ),
    )
    if dry_run:
        if nf4_check is not None:
            print("not checked: whether vLLM in serve.image can load an NF4 base; without --dry-run a pod checks it")
    else:
        address = f"http://serve.{settings.cluster.namespace}:8000"
        form = " (merged)" if merged else ""
        print(f"serving run {trained.run.run_id} as {settings.serve.name}{form}, within the cluster at {address}")
        print(f"its key is the secret {KEY_SECRET}; next: inv serve.check {CLUSTER_URL}")
    return answer


def merge_command(trained: TrainedAdapter) -> str:
    """Return the command that serves the merged model, after the check and the merge that are still missing."""
    run = f"--run={trained.run.run_id}"
    steps = [f"serve --merged {run}"]
    if trained.read_merged() is None:
        steps.insert(0, f"adapter.merge {run} --base={trained.trial.base_precision}")
        if trained.read_check() is None:
            steps.insert(0, f"adapter.check {run}")
    return f"inv {' '.join(steps)}"


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


def adapter_files(trained: TrainedAdapter) -> ServedFiles:
    in_pod = f"{VOLUME}/adapters/{trained.record.adapter_sha256}"
    return ServedFiles(local=trained.adapter, in_pod=in_pod, is_merged=False)


def merged_files(trained: TrainedAdapter) -> ServedFiles:
    """Return the merged model, of this machine or on the volume. Raises UsageError without one."""
    merged = trained.read_merged()
    if merged is None:
        raise UsageError(f"run {trained.run.run_id}: no merged model", remedy=f"type: {merge_command(trained)}")
    path = Path(merged["path"])
    if path.is_dir():
        in_pod = f"{VOLUME}/merged/{trained.record.adapter_sha256}-{sha256_of(path / SUMS_FILE)[:12]}"
        return ServedFiles(local=path, in_pod=in_pod, is_merged=True)
    if not path.is_relative_to(VOLUME) or ".." in path.parts:
        raise UsageError(
            f"run {trained.run.run_id}: the merged model is at {path} on a worker, not on the server's volume",
            remedy=f"merge it again with --out={VOLUME}/merged/{trained.run.run_id}",
        )
    return ServedFiles(local=None, in_pod=str(path), is_merged=True)


def stage_request(settings: Settings, trained: TrainedAdapter, files: ServedFiles) -> dict[str, object]:
    """Return the request to the pod's first container (`bench.adapter.stage`). Raises UsageError."""
    request = {
        "adapter_sha256": str(trained.record.adapter_sha256),
        "model_sha256": trained.model_sha256,
        "into": SERVE_FOLDER,
        "volumes": [VOLUME],
    }
    if files.is_merged:
        wait = {"wait_sec": 0.0} if files.local is None else {}
        return {**request, "model": files.in_pod, "adapter": None, **wait}
    model = trained.trial.model if CONNECTORS[trained.run.fleet_kind].is_cluster else settings.model.path
    if not Path(model).is_absolute():
        raise UsageError(f"model.path: {model}: expected an absolute path in the server's pod")
    return {**request, "model": model, "adapter": files.in_pod}


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
    argv = [*_model_arguments("base"), "--tokenizer", f"{SERVE_FOLDER}/adapter"]
    argv += ["--enable-lora", "--max-lora-rank", str(max_rank)]
    argv += ["--lora-modules", f"{settings.serve.name}={SERVE_FOLDER}/adapter"]
    if trial.base_precision == "nf4":
        argv += ["--quantization", "bitsandbytes", "--load-format", "bitsandbytes"]
    return [*argv, *settings.serve.arguments]


def merged_arguments(settings: Settings) -> list[str]:
    """Return the arguments of `vllm serve` for a merged model, which has its tokenizer and chat template."""
    return [*_model_arguments(settings.serve.name), *settings.serve.arguments]


def _model_arguments(name: str) -> list[str]:
    address = ("--host", "0.0.0.0", "--port", "8000")  # noqa: S104 - a pod's
    return [f"{SERVE_FOLDER}/base", *address, "--served-model-name", name, "--dtype", "bfloat16"]


def _create_key(cluster: Cluster) -> None:
    if cluster.has_secret(KEY_SECRET):
        return
    secret_object, hidden = key_secret(
        name=KEY_SECRET, namespace=cluster.target.namespace, key=Secret(secrets.token_urlsafe(32))
    )
    cluster.apply([secret_object], force_conflicts=True, secrets=hidden)
    print(f"wrote secret/{KEY_SECRET}", flush=True)


class FilesUpload:
    """Upload of the adapter or the merged model to each pod that waits for it."""

    def __init__(self, settings: Settings, files: ServedFiles) -> None:
        (self._host,) = component_hosts(settings, SERVE, container=ADAPTER_CONTAINER, include_starting=True)
        self._files, self._received = files, set[str]()

    def send_to_waiting(self, state: PodFleet) -> None:
        """Upload the files to the waiting pods; retry those without a running container on the next state."""
        if self._files.local is None:
            return
        for row in state.rows:
            if row.pod is not None and row.state not in ("Ready", "Running", "Terminating"):
                with contextlib.suppress(HostError):
                    self._send(row.pod, self._files.local)
            self._host.pods.invalidate()

    def _send(self, pod: str, folder: Path) -> None:
        """Upload the files and their checksums to the pod.

        Raises HostError, also if the container has everything and ends before its last answer arrives.
        """
        if self._files.is_merged:  # hashed only for a running container: gigabytes
            self._host.run(Command(argv=("true",)), timeout_sec=_PROBE_TIMEOUT_SEC)
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS_FILE)
        sent = {str(path.relative_to(folder)): path for path in paths}
        push(Agent(self._host), sent, self._files.in_pod)
        if pod not in self._received:
            self._received.add(pod)
            print(f"sent the {'merged model' if self._files.is_merged else 'adapter'} to {pod}", flush=True)
        with scratch_folder("qlora-fleet-adapter-") as scratch:  # last: the container waits for the checksum file
            sums = folder / SUMS_FILE
            if not sums.is_file():
                sums = scratch / SUMS_FILE
                lines = [f"{sha256_of(path)}  {name}" for name, path in sent.items()]
                sums.write_text("\n".join(lines) + "\n", encoding="utf-8")
            push(Agent(self._host), {SUMS_FILE: sums}, self._files.in_pod)


class NF4Check:
    """Check that is made once, as soon as the namespace and its pull secret exist."""

    def __init__(self, section: ClusterSection, image: Image, merge_command: str, retry_command: str) -> None:
        self._section, self._image = section, image
        self._merge_command, self._retry_command = merge_command, retry_command
        self._is_due = True

    def run_early(self, cluster: Cluster) -> None:
        """Run the check if this is not the first deployment into the namespace. Raises a task's errors."""
        secret = place_pods(self._section, cluster.provider, overlay=SERVE).pull_secret
        if self._is_due and cluster.namespace() is not None and (secret is None or cluster.has_secret(secret)):
            self.run(cluster)

    def run(self, cluster: Cluster) -> None:
        """Run the check unless it was made. Raises a task's errors."""
        if not self._is_due:
            return
        self._is_due = False
        placement, image = place_pods(self._section, cluster.provider, overlay=SERVE), self._image.reference
        command = ["python3", "-B", "-c", read_source(VERSIONS_PROGRAM)]
        try:
            text = run_pod_check(placement, cluster, image, command, self._retry_command)
        except Forbidden as error:
            print(f"the version of vLLM in serve.image cannot be checked: {escape_controls(str(error))}", flush=True)
            return
        require_nf4(text, image, self._merge_command)


def require_nf4(text: str, image: str, merge_command: str) -> None:
    """Raise UsageError if a vLLM with this output of its versions cannot load an NF4 base; warn if that is unknown."""
    try:
        software = ServerSoftware.parse(text)
    except (ValueError, RecursionError):
        software = ServerSoftware(vllm=None, plugin=None, bitsandbytes=None)
    if software.missing_for_nf4 is None:
        version = f"{software.vllm} is a version" if software.vllm else "no package of vLLM was found"
        print(f"! {image}: {version} of unknown capabilities; it may not load an NF4 base", flush=True)
    elif software.missing_for_nf4:
        packages = " and ".join(software.missing_for_nf4)
        raise UsageError(
            f"serve.image: {image}: vLLM {software.vllm} cannot load the NF4 base of the training without {packages}",
            remedy=(
                f"serve the merged model: `{merge_command}`; or set serve.image to an image made FROM this one with "
                f"`pip install --no-deps {' '.join(software.missing_for_nf4)}`; the workers are unchanged"
            ),
        )


def server_pod(settings: Settings) -> PodHost:
    """Return the pod of the server as a host."""
    (host,) = component_hosts(settings, SERVE)
    return dataclasses.replace(host, name="the server of `inv serve`")


def stop_server(context: Context, *, dry_run: bool = False, yes: bool) -> CommandResult | None:
    settings = load(context)
    names = {"Job": SERVE, "Service": SERVE}
    with open_cluster(settings, changes=not dry_run, yes=yes) as cluster:
        objects = [
            item
            for kind, name in names.items()
            for item in cluster.list_fleet_objects(kind)
            if item["metadata"]["name"] == name
        ]
        objects += [secret for secret in cluster.secrets() if secret["metadata"]["name"] == KEY_SECRET]
        if dry_run:
            titles = [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in objects]
            return plan_result([f"delete  {title}" for title in titles] or ["no server is deployed"], delete=titles)
        if not objects:
            print("nothing to do: no server is deployed")
            return None
        with Wait("waiting until the server is gone"):
            cluster.delete(objects, wait_sec=_DELETE_TIMEOUT_SEC)
    print("stopped the server and deleted its key; `inv deploy` restarts the workers")
    return None
