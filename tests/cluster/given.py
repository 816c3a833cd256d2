"""A cluster that is given: `pytest --kubeconfig PATH` points the tests at it instead of at the tests' own.

What needs no switch runs there: looking and acting through kubectl, deleted pods, processes killed in them. A fault
that needs more is asked of `--cluster-faults PROGRAM`, run as `PROGRAM NAME JSON`: what a method of `Faults` calls, and
its arguments. It exits with 75 for what it cannot do. Without it the test is skipped and says so, and so are tests of
faults inside a stream, which no cluster can time to the byte.

Whoever gives a fault program says with it that nodes may be cordoned, tainted and stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.answers import Json
from tests.cluster.cluster import Cluster, Faults
from tests.cluster.kubectl import PASSWORD_VARIABLE, Kubectl

_CANNOT = 75
_FAULT_SEC = 180.0
_TO_THE_BYTE = ("exec", "answer", "struck", "forbid", "expire", "fail_pulls")
# The other half of a fault: without a program nothing was broken, and nothing is to be mended.
_MENDS = ("clear", "back", "speak", "find_node", "mend_pulls")
_PROCESSES = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline") as words: found[pid] = words.read().split("\\0")[:-1]
    except OSError: pass
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Gift:
    """What the command line says of the cluster; the fields are pytest's options."""

    image: str
    registry_user: str | None = None
    password: str | None = None
    instance_type: str = "VM.GPU.A10.1"
    volume: Mapping[str, Any] | None = None
    faults: str | None = None


class GivenCluster(Kubectl):
    """The cluster of a kubeconfig's current context. The same look as `tests.cluster.Cluster`, without its switches."""

    patience_sec = 300.0

    def __init__(self, kubeconfig: Path, cache: Path, gift: Gift) -> None:
        super().__init__(kubeconfig, cache)
        self.gift = gift
        self.faults = Faults(self._strike)

    @cached_property
    def _configuration(self) -> Json:
        return json.loads(self.said("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))  # type: ignore[no-any-return]

    @property
    def server(self) -> str:
        return str(self._configuration["clusters"][0]["cluster"]["server"])

    @property
    def context(self) -> str:
        return str(self._configuration["current-context"])

    @property
    def context_words(self) -> str:
        """How `inv` names this cluster."""
        names = self._configuration["contexts"][0]["context"]
        return f"context {self.context} (cluster {names['cluster']} at {self.server}, user {names['user']})"

    def kubeconfig_text(self, user: str = "admin", *, context: str = "tests", namespace: str = "default") -> str:
        """The same credentials under another context's name."""
        if user != "admin":
            pytest.skip(f"{user}: the cluster of --kubeconfig has one user")
        made = json.loads(json.dumps(self._configuration))
        made["contexts"][0]["name"] = made["current-context"] = context
        made["contexts"][0]["context"]["namespace"] = namespace
        return json.dumps(made)

    def requests(self) -> list[str]:
        pytest.skip("which requests a server got, only the tests' own can tell")

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        pytest.skip(f"the files of claim {namespace}/{claim} lie in the cluster")

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """The live processes of a pod: pid in the pod to argv."""
        said = self.said("exec", "-n", namespace, pod, "--", "python3", "-c", _PROCESSES)
        return {int(pid): words for pid, words in json.loads(said).items()}

    def _strike(self, name: str, /, **arguments: Any) -> Any:
        if name == "delete_pod":
            grace = () if arguments["grace"] is None else (f"--grace-period={arguments['grace']}",)
            force = ("--force",) if arguments["grace"] == 0 else ()
            where = ("-n", arguments["namespace"], "--wait=false", *grace, *force)
            return self.said("delete", "pod", arguments["pod"], *where)
        if name == "kill":
            kill = ("python3", "-c", f"import os; os.kill({arguments['pid']}, 9)")
            return self.said("exec", "-n", arguments["namespace"], arguments["pod"], "--", *kill)
        if self.gift.faults is None or name in _TO_THE_BYTE:
            if name in _MENDS:
                return None
            why = "only the tests' own cluster has it" if name in _TO_THE_BYTE else "--cluster-faults names no program"
            pytest.skip(f"fault {name}: {why}, and --kubeconfig names another cluster")
        done = subprocess.run(
            (self.gift.faults, name, json.dumps(arguments)),
            capture_output=True,
            text=True,
            timeout=_FAULT_SEC,
            check=False,
        )
        if done.returncode == _CANNOT:
            pytest.skip(f"fault {name}: {self.gift.faults} cannot do it on this cluster")
        assert done.returncode == 0, f"{self.gift.faults} {name}: {done.stderr}"
        return None


AnyCluster = Cluster | GivenCluster


def given(config: pytest.Config, cache: Path) -> GivenCluster | None:
    """The cluster that the command line names, if it names one."""
    kubeconfig = config.getoption("kubeconfig")
    if not kubeconfig:
        return None
    volume = config.getoption("cluster_volume")
    gift = Gift(
        image=config.getoption("cluster_image"),
        registry_user=config.getoption("cluster_registry_user"),
        password=os.environ.get(PASSWORD_VARIABLE),
        instance_type=config.getoption("cluster_instance_type"),
        volume=json.loads(volume) if volume else None,
        faults=config.getoption("cluster_faults"),
    )
    return GivenCluster(Path(kubeconfig).resolve(), cache, gift)


def may_break_nodes(cluster: AnyCluster) -> None:
    """Skips where nodes may be others' too."""
    if isinstance(cluster, GivenCluster) and cluster.gift.faults is None:
        pytest.skip("nodes of the cluster that --kubeconfig names are left alone without --cluster-faults")


def gpu_nodes(cluster: AnyCluster) -> list[str]:
    """The nodes that the tests' workers may use."""
    kind = cluster.gift.instance_type if isinstance(cluster, GivenCluster) else "VM.GPU.A10.1"

    def fits(node: Json) -> bool:
        labels, allocatable = node["metadata"].get("labels", {}), node.get("status", {}).get("allocatable", {})
        return labels.get("node.kubernetes.io/instance-type") == kind and allocatable.get("nvidia.com/gpu", "0") != "0"

    return sorted(node["metadata"]["name"] for node in cluster.objects("nodes") if fits(node))
