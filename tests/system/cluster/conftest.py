"""Fixtures: an operator with its own project folder and namespace, and a cluster to deploy to.

Real `inv`, kubectl and Python client. The cluster is the tests' own (see tests/support/kubernetes).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.forked import ForkServer
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import EVICTION_SCALE

INV = Path(sys.executable).with_name("inv")
PASSWORD = "p 4\"ss'w$ord`&"
DIGEST = "sha256:" + "ab" * 32
OUR_USER = "ns/me"
NODES = [f"node-{number}" for number in range(4)]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Provide a cluster of four nodes with one GPU each. Shared: a test undoes its changes of nodes and its faults."""
    with Cluster(nodes=len(NODES), toleration_scale=EVICTION_SCALE) as shared_cluster:
        yield shared_cluster


@dataclass(kw_only=True)
class Operator:
    """User who runs `inv` in a separate project. `settings` are the content of its -f file."""

    project: Path
    cluster: Cluster
    namespace: str
    settings: dict[str, Any]
    server: ForkServer
    path: str = field(default_factory=lambda: os.environ["PATH"])

    @property
    def image(self) -> str:
        return str(self.settings["cluster"]["image"])

    @property
    def results(self) -> Path:
        return self.project / "results"

    def set_cluster(self, **cluster: Any) -> None:
        """Change settings of the section cluster; `size` is fleet.size."""
        if "size" in cluster:
            self.settings["fleet"]["size"] = cluster.pop("size")
        self.settings["cluster"] |= cluster

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in self.cluster.environment.items() if not name.startswith("INVOKE_")}
        return {**clean, "HOME": str(self.project), "PATH": self.path}

    def inv(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run `inv`; assert its exit code, and that an error is one line. Returns stdout and stderr as one text."""
        (self.project / "own.yaml").write_text(yaml.safe_dump(self.settings))
        completed = self.server.inv(
            *("-f", "own.yaml", *arguments),
            cwd=self.project,
            env=self.environment(),
            stdin=stdin,
            timeout_sec=2 * self.cluster.patience_sec,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == code, output
        assert "Traceback" not in output
        assert code in (0, 1) or len(completed.stderr.splitlines()) <= 1, completed.stderr
        return output

    def start(self, *arguments: str, stdin: str = "") -> subprocess.Popen[str]:
        """Start `inv` without waiting for it; `stdin` is what it may read."""
        (self.project / "own.yaml").write_text(yaml.safe_dump(self.settings))
        with tempfile.TemporaryFile("w+") as file:
            file.write(stdin)
            file.seek(0)
            return self.server.start_inv(
                "-f", "own.yaml", *arguments, cwd=self.project, env=self.environment(), stdin=file
            )

    def objects(self, key: str) -> list[dict[str, Any]]:
        return self.cluster.objects(key, self.namespace)

    def kubectl(self, *arguments: str, stdin: bytes | None = None) -> str:
        completed = self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)
        assert completed.returncode == 0, completed.stderr.decode()
        return completed.stdout.decode()

    def inv_unchanged(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run `inv` and assert that it changes nothing in the cluster. Returns its output like `inv`."""
        before = len(self.cluster.requests())
        output = self.inv(*arguments, stdin=stdin, code=code)
        # A review of our permissions and a dry run store nothing.
        harmless = ("GET ", "selfsubjectaccessreviews", "dryRun=All")
        requests = self.cluster.requests()[before:]
        assert [request for request in requests if not any(part in request for part in harmless)] == []
        return output


def make_operator(cluster: Cluster, folder: Path, server: ForkServer) -> Operator:
    """Make an operator with a project in `folder` and a new namespace."""
    project = folder / "project"
    project.mkdir()
    for name in ("invoke.yaml", "tasks.py"):
        shutil.copy(ROOT / name, project)
    for name in ("tasks", "manifests"):
        (project / name).symlink_to(ROOT / name)
    namespace = f"fleet-{uuid.uuid4().hex[:8]}"
    return Operator(
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
                "ready_timeout_sec": cluster.patience_sec,
            },
        },
    )


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path, inv_server: ForkServer) -> Iterator[Operator]:
    """Provide an operator with a pushed image, settings for two small workers, and no deployment."""
    operator = make_operator(cluster, tmp_path, inv_server)
    yield operator
    cluster.faults.clear()
    namespace = operator.namespace
    # GPUs are few: leftover pods would block those of the next test.
    if cluster.objects("jobs.batch", namespace):
        cluster.kubectl("delete", "jobs", "--all", f"--namespace={namespace}", "--cascade=foreground", "--timeout=60s")
    cluster.wait_until(lambda: not cluster.objects("pods", namespace), f"the pods of {namespace} to go")


@pytest.fixture
def deployed(operator: Operator) -> Operator:
    """Provide an operator with two workers that are up."""
    operator.inv("deploy", stdin=f"{PASSWORD}\n")
    return operator
