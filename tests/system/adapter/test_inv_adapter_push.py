"""Test of `inv adapter.push` to a real registry (Debian's docker-registry) with a password, read back like ORAS.

The registry speaks plain HTTP, which our client allows only for this machine. Not covered: the oras client itself, and
a token service (tests/unit/remote/image/test_registry_token.py has one).
"""

import base64
import hashlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.image.artifact import EMPTY_TYPE, MANIFEST_TYPE, TITLE_ANNOTATION
from tests.support.hosts.local_fleet import fill_disk
from tests.support.machines.ports import free_ports
from tests.support.reports.training_run import RECORD, write_run

USER, PASSWORD = "ann", "a password"


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[str]:
    if shutil.which("docker-registry") is None or shutil.which("htpasswd") is None:
        pytest.skip("docker-registry or htpasswd is not installed; `make system` installs them")
    folder, port = tmp_path_factory.mktemp("registry"), free_ports()
    made = subprocess.run(["htpasswd", "-Bbn", USER, PASSWORD], capture_output=True, text=True, check=True, timeout=60)
    (folder / "htpasswd").write_text(made.stdout)
    config = {
        "version": "0.1", "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}}, "http": {"addr": f"127.0.0.1:{port}"},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }  # fmt: skip
    (folder / "config.yml").write_text(json.dumps(config))
    server = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60.0
        while True:
            try:
                read(f"127.0.0.1:{port}", "")
                break
            except OSError:
                assert time.monotonic() < until, "the registry does not answer"
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def read(host: str, path: str) -> bytes:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(
        f"http://{host}/v2/{path}", headers={"Authorization": f"Basic {login}", "Accept": MANIFEST_TYPE}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http, to this machine
        content: bytes = answer.read()
    return content


@pytest.fixture
def pushing(bare_project) -> Path:
    """Return the adapter's folder of a collected training in a project."""
    run = write_run(bare_project.folder / "results" / "20261122-000000-train")
    adapter = run / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (adapter / "adapter_config.json").write_text('{"r": 4}')
    digest = hashlib.sha256(b"weights").hexdigest()
    type(RECORD)(**{**vars(RECORD), "adapter_sha256": digest}).write(run)
    secret = bare_project.folder / "token"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    bare_project.environment |= {"INVOKE_REGISTRY_USER": USER, "INVOKE_REGISTRY_PASSWORD_FILE": str(secret)}
    return adapter


def test_a_pushed_adapter_can_be_read_back_file_by_file_and_is_sent_once(
    bare_project, pushing: Path, registry: str
) -> None:
    where = f"{registry}/team/adapter:1"
    bare_project.inv("adapter.push", "--oci", where)
    record = json.loads((pushing.parent / "adapter-push.json").read_text())
    content = read(registry, "team/adapter/manifests/1")
    assert record["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    manifest = json.loads(content)
    assert manifest["artifactType"] == "application/vnd.qlora-fleet.adapter.v1"
    assert manifest["config"]["mediaType"] == EMPTY_TYPE
    files = {
        layer["annotations"][TITLE_ANNOTATION]: read(registry, f"team/adapter/blobs/{layer['digest']}")
        for layer in manifest["layers"]
    }
    assert files.keys() == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert files["adapter_model.safetensors"] == b"weights"
    repeated = bare_project.inv("adapter.push", "--oci", where)
    assert repeated.stdout.count("already") == 4
    assert ": sent" not in repeated.stdout


@pytest.mark.usefixtures("pushing")
def test_a_full_disk_is_named_and_may_pass(bare_project, small_disk: Path) -> None:
    fill_disk(small_disk)
    target = small_disk / "target"
    assert str(target) in bare_project.inv_error("adapter.push", "--folder", str(target), code=3)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_failed_push_is_one_line_with_a_remedy(bare_project, pushing: Path, registry: str) -> None:
    where = f"{registry}/team/adapter:2"
    wrong = bare_project.folder / "wrong"
    wrong.write_text("another")
    wrong.chmod(0o600)
    for argv, environment, code, token in (
        ((), {}, 2, "--folder=DIR, --oci="),
        (("--oci", "Nowhere"), {}, 2, "HOST/REPOSITORY:TAG"),
        (("--oci", where), {"INVOKE_REGISTRY_PASSWORD_FILE": str(wrong)}, 2, f"user {USER} for team/adapter"),
        (("--oci", f"127.0.0.1:{free_ports()}/team/adapter:2"), {}, 3, "`inv adapter.push "),
    ):
        assert token in bare_project.inv_error("adapter.push", *argv, code=code, **environment)
    (pushing / "adapter_model.safetensors").write_bytes(b"other weights")
    refused = bare_project.inv_error("adapter.push", "--oci", where, code=4)
    assert "adapter_model.safetensors" in refused
