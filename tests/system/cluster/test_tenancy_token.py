"""Our credential plugin with the real kubectl and the Python client; the API server verifies each token as OKE does.

The server has only the public key. Not covered: OKE itself, which asks the service instead of verifying the token.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml

from remote.cluster.credential_cache import credentials_of, kubectl_of, private_folder
from remote.cluster.kubeconfig import resolve
from remote.cluster.namespace_client import Cluster as Client
from tasks.oci.oke_clusters import build_kubeconfig
from tests.support.kubernetes import Cluster
from tests.support.machines.fake_tenancy import ApiKey, ocid
from tests.support.paths import ROOT

HOST = "containerengine.eu-frankfurt-1.oraclecloud.com"
PHRASE = "a 'phrase' with \"quotes\", $HOME and ä"


@pytest.fixture(scope="module")
def keys() -> ApiKey:
    return ApiKey()


@pytest.fixture(scope="module")
def cluster(keys: ApiKey) -> Iterator[Cluster]:
    with Cluster(nodes=1, signer=(keys.key_id, keys.public_pem)) as running_cluster:
        yield running_cluster


@pytest.fixture
def kubeconfig(cluster: Cluster, keys: ApiKey, tmp_path: Path) -> Path:
    """Write a kubeconfig like that of `inv tenancy.kubeconfig`; the plugin records each of its runs in `runs`."""
    config = keys.write_config(tmp_path, phrase=PHRASE)
    program = tmp_path / "program"
    expired_flag = tmp_path / "old"
    program.write_text(
        f"#!/bin/sh\necho $$ >> {tmp_path}/runs\n"
        f'[ -e {expired_flag} ] || exec "$@"\n'
        '"$@" | sed \'s/"expirationTimestamp": "2/"expirationTimestamp": "1/\'\n'
    )
    program.chmod(0o755)
    python = (sys.executable, "-P", "-m", "tasks.oci", "token")
    arguments = ("--cluster", ocid("cluster", "one"), "--host", HOST, "--region", "eu-frankfurt-1")
    command = (str(program), *python, *arguments, "--config-file", str(config), "--profile", "DEFAULT")
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(build_kubeconfig(cluster.kubeconfig_text(), "one", command)))
    (tmp_path / "tasks.py").write_text("raise SystemExit('another project')")
    return path


def runs(kubeconfig: Path) -> int:
    """Count the runs of the credential program. A kubectl that first asks for the version runs it for `resolve`."""
    file = kubeconfig.parent / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_kubectl_and_the_client_read_a_kept_token_until_it_expires(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(kubeconfig.parent)  # with a tasks.py of another project
    target = resolve(kubeconfig=str(kubeconfig), context=None, namespace="default")
    kubectl = kubectl_of(target)
    before = runs(kubeconfig)
    for _ in range(3):
        argv = kubectl.argv("get", "nodes", "-o", "name", "-v=9")
        done = subprocess.run(argv, capture_output=True, timeout=60, check=True, text=True)
        assert done.stdout == "node/node-0\n"
        assert PHRASE not in done.stderr + kubeconfig.read_text()
        assert "PRIVATE KEY" not in done.stderr + kubeconfig.read_text()
    assert runs(kubeconfig) == before + 1, "once for the token that is kept"
    (answer,) = private_folder().glob("kubeconfig-*.json")
    assert (answer.stat().st_mode & 0o777, "token" in answer.read_text()) == (0o600, True)
    before = runs(kubeconfig)
    client = Client(target)
    for _ in range(3):
        client.nodes()
    assert runs(kubeconfig) == before, "the client shares it"
    client.delete([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent"}}], wait_sec=5.0)
    client.close()
    assert runs(kubeconfig) > before, "a deletion may outlast the kept token"
    cache = credentials_of(target)
    (kubeconfig.parent / "old").touch()  # the program's next answer has expired
    cache._renew_at = 0.0
    assert kubectl.argv()[-1] == f"--kubeconfig={kubeconfig}", "kubectl runs the program again"
