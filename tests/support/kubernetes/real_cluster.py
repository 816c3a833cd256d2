"""A cluster that is given: `pytest --kubeconfig PATH` points the tests at it instead of at the tests' own.

What needs no switch runs there: looking and acting through kubectl, deleted pods, processes killed in them. A fault
that needs more is asked of `--cluster-faults PROGRAM`, run as `PROGRAM NAME JSON`: what a method of `Faults` calls, and
its arguments. It exits with 75 for what it cannot do. Without it the test is skipped and says so, and so are tests of
faults inside a stream, which no cluster can time to the byte.

Whoever gives a fault program says with it that nodes may be cordoned, tainted and stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.cluster import Cluster, Faults
from tests.support.kubernetes.kubectl import PASSWORD_VARIABLE, Kubectl

_CANNOT = 75
_FAULT_SEC = 180.0
_TO_THE_BYTE = ("exec", "answer", "struck", "forbid", "expire", "fail_pulls")
# What mends a fault, and what it mends: where nothing was broken, nothing is to be done.
_MENDS = {
    "clear": ("forbid", "expire", "exec", "answer"),
    "back": ("gone",),
    "speak": ("silence",),
    "find_node": ("lose_node", "silence_node"),
    "mend_pulls": ("fail_pulls",),
    "set_gpus": ("set_gpus",),
}
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
    volume_here: Path | None = None
    faults: str | None = None


class GivenCluster(Kubectl):
    """The cluster of a kubeconfig's current context. The same look as `tests.support.kubernetes.Cluster`, without its
    switches.

    `home` is the namespace that tests mean which know of no other than `default`.
    """

    patience_sec = 300.0

    def __init__(self, kubeconfig: Path, cache: Path, gift: Gift, home: str = "default") -> None:
        super().__init__(kubeconfig, cache)
        self.gift, self.home, self._folder = gift, home, cache
        self.faults = Faults(self._strike)
        self._broken: set[str] = set()

    @contextlib.contextmanager
    def at_home(self) -> Iterator[GivenCluster]:
        """The same cluster, at home in a namespace of its own that is deleted at the end."""
        home = f"qlora-fleet-test-{secrets.token_hex(4)}"
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}})
        kubeconfig = self._folder / f"{home}.kubeconfig"
        kubeconfig.write_text(self.kubeconfig_text(context=self.context, namespace=home))
        try:
            yield GivenCluster(kubeconfig, self._folder, self.gift, home)
        finally:
            self.drop(home)
            self.kubectl("delete", "persistentvolume", home, "--ignore-not-found", "--wait=false")

    def drop(self, namespace: str) -> None:
        """Take a namespace away, its Jobs first: it waits for their pods, which wait for their replacements."""
        self.kubectl("delete", "jobs", "--all", "-n", namespace, "--wait=false")
        self.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")

    def _namespace(self, asked: str) -> str:
        return self.home if asked == "default" else asked

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """As of any cluster. A server that was struck is waited for: it is looked at past no other way."""
        answers: list[list[Json]] = []

        def answered() -> bool:
            try:
                answers.append(super(GivenCluster, self).objects(key, self._namespace(namespace)))
            except AssertionError as refused:
                if not self._broken or not re.search(r"refused|timeout|EOF|reset", str(refused)):
                    raise
            return bool(answers)

        self.wait_until(answered, f"an answer to `kubectl get {key}`")
        return answers[0]

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
        """Where the files of --cluster-volume lie on this machine; all claims of tests are that one volume."""
        if self.gift.volume is None or self.gift.volume_here is None:
            pytest.skip(f"claim {namespace}/{claim} needs --cluster-volume and --cluster-volume-here")
        return self.gift.volume_here

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """The live processes of a pod: pid in the pod to argv."""
        said = self.said("exec", "-n", self._namespace(namespace), pod, "--", "python3", "-c", _PROCESSES)
        return {int(pid): words for pid, words in json.loads(said).items() if words and _PROCESSES not in words}

    def _strike(self, name: str, /, **arguments: Any) -> Any:
        if "namespace" in arguments:
            arguments["namespace"] = self._namespace(arguments["namespace"])
        if name == "delete_pod":
            grace = () if arguments["grace"] is None else (f"--grace-period={arguments['grace']}",)
            force = ("--force",) if arguments["grace"] == 0 else ()
            where = ("-n", arguments["namespace"], "--wait=false", *grace, *force)
            return self.said("delete", "pod", arguments["pod"], *where)
        if name == "kill":
            kill = ("python3", "-c", f"import os; os.kill({arguments['pid']}, 9)")
            return self.said("exec", "-n", arguments["namespace"], arguments["pod"], "--", *kill)
        if name in _MENDS and not self._broken.intersection(_MENDS[name]) and arguments.get("gpus") != 0:
            return None
        if name in _TO_THE_BYTE:
            pytest.skip(f"fault {name}: only the tests' own cluster has it, and --kubeconfig names another")
        if self.gift.faults is None:
            pytest.skip(f"fault {name}: --cluster-faults names no program, and --kubeconfig another cluster")
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
        self._broken.add(name)
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
        volume_here=Path(here).resolve() if (here := config.getoption("cluster_volume_here")) else None,
        faults=config.getoption("cluster_faults"),
    )
    return GivenCluster(Path(kubeconfig).resolve(), cache, gift)


@contextlib.contextmanager
def given_or_own(config: pytest.Config, cache: Path, *, nodes: int) -> Iterator[AnyCluster]:
    """The cluster that the command line names, if it names one; else the tests' own with so many nodes."""
    other = given(config, cache)
    if other is not None:
        yield other
        return
    with Cluster(nodes=nodes) as own:
        yield own


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
