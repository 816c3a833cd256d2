"""Every command of docs/tutorials/oke.md and kubernetes.md, typed where it can run: tenancy and cluster.

Real kubectl and SDK; `inv` is forked. The tenancy and the cluster are the tests' own; the kubeconfig of `inv
tenancy.kubeconfig` leads from one to the other. Deployment, benchmark and training are the same on both pages, and
typed with THOROUGH=1: tests/system/cluster and test_inv_bench_pods.py run them too. Not covered: blocks `by-hand`, and
the part about the image (tests/system/image/test_tutorials.py).
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_words import CLOUD_WORDS
from tests.support.documents import TUTORIALS, blocks, typed_script
from tests.support.forked import install_forked_inv
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.inv_pods import make_workspace
from tests.support.kubernetes import Cluster
from tests.support.machines.build_vm import PLAIN_REGISTRY
from tests.support.paths import ROOT
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import type_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OKE, GENERIC = TUTORIALS / "oke.md", TUTORIALS / "kubernetes.md"
TENANCY_SECTION, IMAGE_SECTION, RUN_SECTION = "2. Settings from the tenancy", "3. The image", "5. Measure and train"
PODS = 2


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the content of the image: bench/, whose trials and fine-tunings compute nothing."""
    return make_workspace(tmp_path_factory, install_fake_training, install_fake_finetune)


@pytest.fixture
def small(tiny_model: Path, tiny_data: Path, workspace: Path, bare_project: Project) -> Project:
    """Provide a project whose environment has settings that replace those of the page: the machine is small."""
    bin_folder = Path(sys.executable).parent
    settings = {
        "MODEL_PATH": tiny_model,
        "DATA_PATH": tiny_data,
        "BENCH_PROFILE": "tiny",
        "FLEET_WORKSPACE": workspace,
        "FLEET_PODS_PYTHON": sys.executable,
        "FLEET_PODS_THREADS": "1",
        "TRAIN_MAX_STEPS": "3",
        "TRAIN_MAX_SEQ_LEN": "256",
        "CLUSTER_IMAGE": f"{PLAIN_REGISTRY}/team/qlora-fleet@sha256:{'ab' * 32}",
        "CLUSTER_CPU": "100m",
        "CLUSTER_MEMORY": "64Mi",
        "CLUSTER_SHM": "16Mi",
        "CLUSTER_SCRATCH": "64Mi",
        "CLUSTER_READY_TIMEOUT_SEC": "200",
    }
    (bare_project.folder / "manifests").symlink_to(ROOT / "manifests")
    program = install_forked_inv(bare_project.folder / "bin", bare_project.server)
    del bare_project.environment["INVOKE_FLEET_SIZE"]
    bare_project.environment["PATH"] = f"{program.parent}:{bin_folder}:{os.environ['PATH']}"
    bare_project.environment |= {f"INVOKE_{name}": str(value) for name, value in settings.items()}
    return bare_project


def running_cluster(workspace: Path, model: Path, data: Path, **options: Any) -> Cluster:
    image = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(workspace)}
    folders = (model.parent, data.parent, workspace)
    return Cluster(nodes=PODS, image_paths=folders, image_environment=image, **options)


def typed_lines(page: Path, section: str) -> list[str]:
    return [line for block in blocks(page) if block.section == section and block.is_typed for line in block.lines()]


def write_token(project: Project, name: str) -> None:
    path = project.folder / name
    path.touch(mode=0o600)
    path.write_text("a token\n")


@pytest.fixture
def oke(workspace: Path, tiny_model: Path, tiny_data: Path, small: Project) -> Iterator[Project]:
    """Provide an operator's project, with a tenancy whose cluster's nodes are those of the tests' cluster."""
    pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")
    from tests.support.machines.fake_tenancy import ApiKey, FakeTenancy

    keys = ApiKey()
    signer = (keys.key_id, keys.public_pem)
    cluster = running_cluster(workspace, tiny_model, tiny_data, signer=signer)
    with FakeTenancy(keys) as tenancy, cluster:
        tenancy.kubeconfig = cluster.kubeconfig_text()
        keys.write_config(small.folder)
        endpoint = f"from tasks.oci import clients; clients.ENDPOINT = {tenancy.url!r}; "
        install_forked_inv(small.folder / "bin", small.server, before=endpoint)
        write_token(small, "ocir-token")
        yield small


def test_every_command_for_a_tenancy_succeeds(oke: Project) -> None:
    assert typed_lines(OKE, RUN_SECTION) == typed_lines(GENERIC, RUN_SECTION)
    assert typed_lines(OKE, "4. Four nodes") == typed_lines(GENERIC, "4. The pods")
    output = type_script(oke, typed_script(OKE, TENANCY_SECTION) + "inv nodes\n")
    assert f"{PODS} nodes qualify" in output


@only_thorough
def test_every_command_on_any_kubernetes_succeeds_and_names_no_cloud(
    workspace: Path, tiny_model: Path, tiny_data: Path, small: Project
) -> None:
    write_token(small, "registry-token")
    with running_cluster(workspace, tiny_model, tiny_data) as cluster:
        kubeconfig = small.folder / ".kube" / "config"
        kubeconfig.parent.mkdir()
        kubeconfig.write_text(cluster.kubeconfig_text(context="my-cluster"))
        kubeconfig.chmod(0o600)
        small.environment["KUBECONFIG"] = str(kubeconfig)
        small.environment["INVOKE_CLUSTER_PROVIDER"] = "generic"  # its nodes have OKE's labels
        sections = {block.section for block in blocks(GENERIC)} - {IMAGE_SECTION}
        output = type_script(small, typed_script(GENERIC, *sections) + "inv runs\n")
    assert f"{PODS} of {PODS} pods are up" in output
    assert (small.run_folder() / "adapter").is_dir()
    assert [line for line in output.splitlines() if CLOUD_WORDS.search(line)] == []
