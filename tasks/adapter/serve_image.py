"""Check of the server's image before `inv serve` changes the workers: can its vLLM load an NF4 base?

A pod without a GPU reads the versions in the image, on a node that may run the server later; the image is pulled while
the workers still run.
"""

from remote.cluster.client import Cluster
from remote.cluster.manifests import Image
from remote.hosts.bundle import read_source
from remote.hosts.pods.errors import Forbidden
from remote.serving import ServerSoftware
from tasks.clients.pod_check import PodCheck, run_pod_check
from tasks.errors import UsageError, escape_controls
from tasks.settings.load import Settings

POD_NAME, PROGRAM = "serve-check", "remote.agent.scripts.server_software"
CHECK_TIMEOUT_SEC = 120.0


class NF4Check:
    """Check that is made once, as soon as the namespace and its pull secret exist."""

    def __init__(self, settings: Settings, image: Image, merge_command: str) -> None:
        self._settings, self._image, self._merge_command = settings, image, merge_command
        self._is_due = True

    def run_early(self, cluster: Cluster) -> None:
        """Run the check if this is not the first deployment into the namespace. Raises a task's errors."""
        secret = self._settings.cluster.pull_secret
        if self._is_due and cluster.namespace() is not None and (secret is None or cluster.has_secret(secret)):
            self.run(cluster)

    def run(self, cluster: Cluster) -> None:
        """Run the check unless it was made. Raises a task's errors."""
        if not self._is_due:
            return
        self._is_due = False
        check = PodCheck(
            name=POD_NAME,
            image=self._image.reference,
            command=["python3", "-B", "-c", read_source(PROGRAM)],
            gpus=0,
            cpu="100m",
            memory="256Mi",
            timeout_sec=CHECK_TIMEOUT_SEC,
            retry_command="inv serve",
        )
        try:
            _, text = run_pod_check(self._settings, cluster, check)
        except Forbidden as error:
            print(f"the version of vLLM in serve.image cannot be checked: {escape_controls(str(error))}", flush=True)
            return
        require_nf4(text, self._image.reference, self._merge_command)


def require_nf4(text: str, image: str, merge_command: str) -> None:
    """Raise UsageError if a vLLM with this output of PROGRAM cannot load an NF4 base; warn if that is unknown."""
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
