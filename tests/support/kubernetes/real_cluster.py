"""A real cluster for tests, and a plugin of pytest: `pytest --kubeconfig PATH` uses it instead of the fake one.

Tests can use kubectl, delete pods and kill processes in pods. Those that need another fault, or change nodes, are
skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.cluster import Cluster, Faults
from tests.support.kubernetes.kubectl import PASSWORD_VARIABLE, Kubectl

# Calls that undo a fault; none was injected.
_REPAIRS = ("clear", "start_server", "resume_server", "restore_node", "repair_pulls")
_LIST_PROCESSES = """
import json, os
processes = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline") as file: processes[pid] = file.read().split("\\0")[:-1]
    except OSError: pass
print(json.dumps(processes))
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster", "a real cluster instead of the fake one")
    group.addoption("--kubeconfig", help="run the cluster tests on this file's current context")
    group.addoption(
        "--cluster-image", default="busybox:1.36", help="image of its pods, preferably one that `inv push` pushed"
    )
    group.addoption("--cluster-registry-user", help="user who may pull it; password in QLORA_FLEET_TEST_PASSWORD")
    group.addoption("--cluster-instance-type", default="VM.GPU.A10.1", help="instance-type label of its GPU nodes")
    group.addoption("--cluster-volume", help='volume that all its nodes share, as in a PV: {"nfs": {"server": ...}}')
    group.addoption("--cluster-volume-here", help="folder of that volume's files on this machine")


def pytest_report_header(config: pytest.Config) -> str:
    return f"cluster: {config.getoption('kubeconfig') or 'fake'}"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Pytest's options for the cluster."""

    image: str
    registry_user: str | None = None
    password: str | None = None
    instance_type: str = "VM.GPU.A10.1"
    volume: Mapping[str, Any] | None = None
    volume_here: Path | None = None


class RealCluster(Kubectl):
    """Cluster of a kubeconfig's current context, with the interface of `tests.support.kubernetes.Cluster`.

    Tests that use the namespace `default` get `default_namespace` instead.
    """

    patience_sec = 300.0

    def __init__(
        self, kubeconfig: Path, cache: Path, options: ClusterOptions, default_namespace: str = "default"
    ) -> None:
        super().__init__(kubeconfig, cache)
        self.options, self.default_namespace, self._folder = options, default_namespace, cache
        self.faults = Faults(self._inject)

    @contextlib.contextmanager
    def in_own_namespace(self) -> Iterator[RealCluster]:
        """Use the cluster with a new default namespace, which is deleted at the end."""
        namespace = f"qlora-fleet-test-{secrets.token_hex(4)}"
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubeconfig = self._folder / f"{namespace}.kubeconfig"
        kubeconfig.write_text(self.kubeconfig_text(context=self.context, namespace=namespace))
        try:
            yield RealCluster(kubeconfig, self._folder, self.options, namespace)
        finally:
            self.delete_namespace(namespace)
            self.kubectl("delete", "persistentvolume", namespace, "--ignore-not-found", "--wait=false")

    def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace, its Jobs first: otherwise it waits for pods that wait for their replacements."""
        self.kubectl("delete", "jobs", "--all", "-n", namespace, "--wait=false")
        self.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")

    def _namespace(self, name: str) -> str:
        return self.default_namespace if name == "default" else name

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        return super().objects(key, self._namespace(namespace))

    @cached_property
    def _configuration(self) -> Json:
        return json.loads(self.output("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))  # type: ignore[no-any-return]

    @property
    def server(self) -> str:
        return str(self._configuration["clusters"][0]["cluster"]["server"])

    @property
    def context(self) -> str:
        return str(self._configuration["current-context"])

    @property
    def context_description(self) -> str:
        """Description of this cluster in messages of `inv`."""
        names = self._configuration["contexts"][0]["context"]
        return f"context {self.context} (cluster {names['cluster']} at {self.server}, user {names['user']})"

    def kubeconfig_text(self, user: str = "admin", *, context: str = "tests", namespace: str = "default") -> str:
        """Return a kubeconfig with the same credentials and another context name."""
        if user != "admin":
            pytest.skip(f"{user}: the cluster of --kubeconfig has one user")
        config = json.loads(json.dumps(self._configuration))
        config["contexts"][0]["name"] = config["current-context"] = context
        config["contexts"][0]["context"]["namespace"] = namespace
        return json.dumps(config)

    def requests(self) -> list[str]:
        pytest.skip("only the fake cluster records its requests")

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """Return the folder of --cluster-volume's files on this machine; all claims of tests use that volume."""
        if self.options.volume is None or self.options.volume_here is None:
            pytest.skip(f"claim {namespace}/{claim} needs --cluster-volume and --cluster-volume-here")
        return self.options.volume_here

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """Return the live processes of a pod: pid in the pod to argv."""
        output = self.output("exec", "-n", self._namespace(namespace), pod, "--", "python3", "-c", _LIST_PROCESSES)
        return {int(pid): argv for pid, argv in json.loads(output).items() if argv and _LIST_PROCESSES not in argv}

    def delete_pod(self, pod: str, namespace: str = "default", *, grace: int | None = None) -> str:
        flags = () if grace is None else (f"--grace-period={grace}", *(("--force",) if grace == 0 else ()))
        return self.output("delete", "pod", pod, "-n", self._namespace(namespace), "--wait=false", *flags)

    def kill(self, pod: str, pid: int, namespace: str = "default") -> str:
        program = ("python3", "-c", f"import os; os.kill({pid}, 9)")
        return self.output("exec", "-n", self._namespace(namespace), pod, "--", *program)

    def _inject(self, name: str, /, *positional: Any, **arguments: Any) -> Any:
        if name in ("delete_pod", "kill"):
            return getattr(self, name)(*positional, **arguments)
        if name in _REPAIRS:
            return None
        pytest.skip(f"fault {name}: only the fake cluster supports it")


AnyCluster = Cluster | RealCluster


def real_cluster(config: pytest.Config, cache: Path) -> RealCluster | None:
    """Return the cluster of `--kubeconfig`, or None."""
    kubeconfig = config.getoption("kubeconfig")
    if not kubeconfig:
        return None
    volume = config.getoption("cluster_volume")
    options = ClusterOptions(
        image=config.getoption("cluster_image"),
        registry_user=config.getoption("cluster_registry_user"),
        password=os.environ.get(PASSWORD_VARIABLE),
        instance_type=config.getoption("cluster_instance_type"),
        volume=json.loads(volume) if volume else None,
        volume_here=Path(here).resolve() if (here := config.getoption("cluster_volume_here")) else None,
    )
    return RealCluster(Path(kubeconfig).resolve(), cache, options)


@contextlib.contextmanager
def real_or_fake_cluster(config: pytest.Config, cache: Path, *, nodes: int) -> Iterator[AnyCluster]:
    """Provide the cluster of `--kubeconfig`, or a fake one with `nodes` nodes."""
    real = real_cluster(config, cache)
    if real is not None:
        yield real
        return
    with Cluster(nodes=nodes) as fake:
        yield fake


def skip_unless_nodes_may_break(cluster: AnyCluster) -> None:
    """Skip the test on a real cluster, whose nodes may be shared."""
    if isinstance(cluster, RealCluster):
        pytest.skip("tests do not change the nodes of a real cluster")


def gpu_nodes(cluster: AnyCluster) -> list[str]:
    """Return the names of the nodes that the tests' workers can use."""
    kind = cluster.options.instance_type if isinstance(cluster, RealCluster) else "VM.GPU.A10.1"

    def fits(node: Json) -> bool:
        labels, allocatable = node["metadata"].get("labels", {}), node.get("status", {}).get("allocatable", {})
        return labels.get("node.kubernetes.io/instance-type") == kind and allocatable.get("nvidia.com/gpu", "0") != "0"

    return sorted(node["metadata"]["name"] for node in cluster.objects("nodes") if fits(node))
