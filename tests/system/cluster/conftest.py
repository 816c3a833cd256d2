"""An operator with a project folder of its own, a namespace of its own, and a cluster to deploy to.

Real `inv`, real kubectl, the real Python client. The cluster is the tests' own (what it stands in for is said at the
top of tests/cluster), or that of `--kubeconfig`; then `--cluster-image` is what is deployed.
"""

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.forked import ForkServer
from tests.support.kubernetes.real_cluster import AnyCluster, GivenCluster, given_or_own
from tests.support.paths import ROOT

INV = Path(sys.executable).with_name("inv")
PASSWORD = "p 4\"ss'w$ord`&"
DIGEST = "sha256:" + "ab" * 32
OUR_USER = "ns/me"


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """Four nodes with one GPU each. Shared: whoever changes a node or arms a fault undoes it."""
    with given_or_own(pytestconfig, tmp_path_factory.mktemp("kube-cache"), nodes=4) as found:
        yield found


@dataclass(kw_only=True)
class Operator:
    """Runs `inv` in a project of its own. `settings` are those of its -f file."""

    project: Path
    cluster: AnyCluster
    namespace: str
    settings: dict[str, Any]
    server: ForkServer
    password: str = PASSWORD
    path: str = field(default_factory=lambda: os.environ["PATH"])

    @property
    def image(self) -> str:
        return str(self.settings["cluster"]["image"])

    @property
    def registry_user(self) -> str:
        return str(self.settings["registry"]["user"])

    @property
    def results(self) -> Path:
        return self.project / "results"

    def set(self, **cluster: Any) -> None:
        """Change settings of the section cluster; `size` is fleet.size, `registry_user` registry.user."""
        if "size" in cluster:
            self.settings["fleet"]["size"] = cluster.pop("size")
        if "registry_user" in cluster:
            self.settings["registry"]["user"] = cluster.pop("registry_user")
        self.settings["cluster"] |= cluster

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in self.cluster.environment.items() if not name.startswith("INVOKE_")}
        return {**clean, "HOME": str(self.project), "PATH": self.path}

    def inv(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run `inv`; asserts its exit code, and that an error is one line. Both streams, as one text."""
        (self.project / "own.yaml").write_text(yaml.safe_dump(self.settings))
        ended = self.server.inv(
            *("-f", "own.yaml", *words),
            cwd=self.project,
            env=self.environment(),
            stdin=stdin,
            timeout_sec=2 * self.cluster.patience_sec,
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == code, said
        assert "Traceback" not in said
        assert code in (0, 1) or len(ended.stderr.splitlines()) <= 1 or "shell" in words, ended.stderr
        return said

    def objects(self, key: str) -> list[dict[str, Any]]:
        return self.cluster.objects(key, self.namespace)

    def kubectl(self, *words: str, stdin: bytes | None = None) -> str:
        done = self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def changes(self, *words: str, stdin: str = "", code: int = 0) -> list[str]:
        """What one `inv` changes. Own cluster: its requests that change anything; a given one: what is there no more as
        it was, Jobs' progress aside.
        """
        if isinstance(self.cluster, GivenCluster):
            before = self._versions()
            self.inv(*words, stdin=stdin, code=code)
            after = self._versions()
            return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        requests = self.requests_of(*words, stdin=stdin, code=code)
        # A review of our own rights is a POST that stores nothing.
        return [r for r in requests if not r.startswith("GET ") and "selfsubjectaccessreviews" not in r]

    def _versions(self) -> dict[str, tuple[str, ...]]:
        kinds = "jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,pvc"
        found = {}
        for object in self.objects(kinds):
            meta = object["metadata"]
            version = str(meta["generation"]) if object["kind"] == "Job" else meta["resourceVersion"]
            found[f"{object['kind']}/{meta['name']}"] = (meta["uid"], version)
        return found

    def requests_of(self, *words: str, stdin: str = "", code: int = 0) -> list[str]:
        """The requests that one `inv` makes."""
        before = len(self.cluster.requests())
        self.inv(*words, stdin=stdin, code=code)
        return self.cluster.requests()[before:]


def make_operator(cluster: AnyCluster, folder: Path, server: ForkServer) -> Operator:
    """An operator with a project in `folder` and a namespace of its own."""
    project = folder / "project"
    project.mkdir()
    for name in ("invoke.yaml", "tasks.py"):
        shutil.copy(ROOT / name, project)
    for name in ("tasks", "manifests"):
        (project / name).symlink_to(ROOT / name)
    namespace = f"fleet-{uuid.uuid4().hex[:8]}"
    made = Operator(
        project=project,
        cluster=cluster,
        namespace=namespace,
        server=server,
        settings={
            "fleet": {"kind": "pods", "size": 2},
            "registry": {"user": OUR_USER},
            "cluster": {
                "namespace": namespace,
                "image": f"fra.ocir.io/ns/{namespace}@{DIGEST}",
                "cpu": "100m",
                "memory": "64Mi",
                "shm": "16Mi",
                "scratch": "64Mi",
                "ready_within_sec": cluster.patience_sec,
            },
        },
    )
    if isinstance(cluster, GivenCluster):
        gift = cluster.gift
        made.set(image=gift.image, instance_type=gift.instance_type, registry_user=gift.registry_user or OUR_USER)
        made.password = gift.password or PASSWORD
    return made


@pytest.fixture
def operator(cluster: AnyCluster, tmp_path: Path, inv_server: ForkServer) -> Iterator[Operator]:
    """An operator who has pushed an image and deployed nothing yet; two small workers."""
    made = make_operator(cluster, tmp_path, inv_server)
    yield made
    cluster.faults.clear()
    namespace = made.namespace
    # GPUs are few: whatever is left of this test must not keep the next one's pods waiting.
    if cluster.objects("jobs.batch", namespace):
        cluster.kubectl("delete", "jobs", "--all", f"--namespace={namespace}", "--cascade=foreground", "--timeout=60s")
    cluster.wait_until(lambda: not cluster.objects("pods", namespace), f"the pods of {namespace} to go")
    if isinstance(cluster, GivenCluster):
        cluster.drop(namespace)


@pytest.fixture
def deployed(operator: Operator) -> Operator:
    """The same, with both workers up."""
    operator.inv("deploy", stdin=f"{operator.password}\n")
    return operator
