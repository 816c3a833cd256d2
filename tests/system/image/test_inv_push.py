"""`inv push` on a laptop: a real engine on the VM pushes to a real registry with TLS and a password.

The registry has the name fra.ocir.io. Not covered: OCIR's repositories and permissions, and its token service.
"""

import base64
import json
import os
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import read_process_table
from tests.support.machines.build_vm import (
    DOCKER,
    NAMESPACE,
    PASSWORD,
    REGISTRY,
    REGISTRY_USER,
    SECRET_MARK,
    BuildVm,
)

REPOSITORY = f"{REGISTRY}/{NAMESPACE}/qlora-fleet"
IMAGE = "qlora-fleet:tiny"
PUSH = "/push?"  # in the request to the engine
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True, scope="module")
def _image_to_push(session_build_vm: BuildVm) -> None:
    session_build_vm.reset()
    session_build_vm.inv("build")


def read_record(build_vm: BuildVm) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((build_vm.project / "results" / "image.json").read_text())
    return document


def blob_file(build_vm: BuildVm, digest: str) -> Path:
    return build_vm.folder / "registry/docker/registry/v2/blobs/sha256" / digest[7:9] / digest[7:] / "data"


def relabel(build_vm: BuildVm, text: str) -> None:
    """Replace the image quickly by one with another label and the same layers."""
    text = f"FROM {IMAGE}\nLABEL qlora-fleet.test={json.dumps(text)}\n"
    build_vm.docker("build", "--quiet", "--tag", IMAGE, "-", input=text, env={**os.environ, "DOCKER_BUILDKIT": "1"})


def test_a_wrong_password_is_reported_with_the_forms_of_a_user_name(build_vm: BuildVm) -> None:
    build_vm.write_password_file("not it")
    refused = build_vm.inv("push", code=2).stderr
    assert refused.startswith(REGISTRY)
    assert f"user {REGISTRY_USER} " in refused
    assert f"{NAMESPACE.upper()}" not in refused
    assert "NAMESPACE/oracleidentitycloudservice/USER" in refused
    assert "not it" not in refused


def test_a_push_is_confirmed_by_the_registry_and_the_next_one_sends_only_what_is_missing(build_vm: BuildVm) -> None:
    build_vm.inv("push")
    document, before = read_record(build_vm), build_vm.blobs()
    assert (document["schema_version"], document["repository"]) == (2, REPOSITORY)
    assert document["reference"] == f"{REPOSITORY}:test"
    assert document["labels"]["qlora-fleet.profile"] == "tiny"
    # The registry's disk has that manifest and all its parts.
    first, manifest = document["digest"], json.loads(blob_file(build_vm, document["digest"]).read_text())
    sizes = {part["digest"][7:]: part["size"] for part in (manifest["config"], *manifest["layers"])}
    assert {digest: before[digest] for digest in sizes} == sizes
    assert document["compressed_bytes"] == manifest["config"]["size"] + sum(part["size"] for part in manifest["layers"])
    blob_file(build_vm, manifest["layers"][-1]["digest"]).unlink()
    build_vm.inv("push")
    assert (build_vm.blobs(), read_record(build_vm)["digest"]) == (before, first)
    build_vm.edit_bench("one line")
    build_vm.inv("build")
    build_vm.inv("push")
    new = {digest: size for digest, size in build_vm.blobs().items() if digest not in before}
    assert read_record(build_vm)["digest"] != first
    assert 0 < sum(new.values()) < 1_000_000, new


def test_a_tag_that_is_moved_during_the_push_is_refused(build_vm: BuildVm) -> None:
    relabel(build_vm, "a tag moved during the push")
    login = build_vm.folder / "third-login"
    build_vm.docker("--config", str(login), "login", "-u", REGISTRY_USER, "--password-stdin", REGISTRY, input=PASSWORD)
    build_vm.vm.run("chmod", "-R", "a+rX", str(login))
    push = f"{DOCKER} --config {shlex.quote(str(login))} push {REPOSITORY}:test"
    move_tag = f"{DOCKER} tag standin:base {REPOSITORY}:test; {push}"
    done = build_vm.inv("push", code=4, IMAGE_CLIENT=build_vm.gated_client(PUSH, after=move_tag, is_open=True))
    assert f"{REPOSITORY}:test " in done.stderr


def test_a_push_completes_although_the_registry_is_killed_during_an_upload(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a killed registry")
    build_vm.inv("build")
    process, _ = build_vm.start_inv_to_gate("push")
    killed = threading.Event()

    def kill() -> None:
        uploads = build_vm.folder / "registry/docker/registry/v2/repositories"
        build_vm.wait_for(
            lambda: list(uploads.glob(f"{NAMESPACE}/qlora-fleet/_uploads/*")) or process.poll() is not None, "an upload"
        )
        killed.set()
        build_vm.kill_registry()

    thread = threading.Thread(target=kill)
    thread.start()
    build_vm.open_gate()
    thread.join(120)
    assert killed.is_set()
    build_vm.start_registry()
    out, _ = build_vm.wait_for_exit(process, timeout_sec=250)
    assert f"{REPOSITORY}@{read_record(build_vm)['digest']} pushed in" in out
    assert read_record(build_vm)["digest"][7:] in build_vm.blobs()


def test_the_password_appears_nowhere(build_vm: BuildVm) -> None:
    relabel(build_vm, "a secret")
    client = build_vm.gated_client(PUSH)
    process = build_vm.start_inv("push", IMAGE_CLIENT=client)
    encoded = base64.b64encode(f"{REGISTRY_USER}:{PASSWORD}".encode())
    needles = [SECRET_MARK.encode(), encoded, PASSWORD.encode(), json.dumps(PASSWORD).encode()[1:-1]]
    leaks: list[bytes] = []
    stop, push_seen = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for content in read_process_table():
                leaks.extend(content for needle in needles if needle in content)
                if b"docker-push" in content:
                    push_seen.set()
            stop.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        build_vm.wait_at_gate()
        build_vm.open_gate()
        out, err = build_vm.wait_for_exit(process)
    finally:
        stop.set()
        watcher.join(60)
    history = build_vm.docker("history", "--no-trunc", IMAGE).stdout + build_vm.docker("image", "inspect", IMAGE).stdout
    roots = (build_vm.network.home, Path(build_vm.tmpdir), build_vm.project / "results", build_vm.folder / "registry")
    paths = [path for root in roots for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    files = [path.read_bytes() for path in paths]
    logs = [(build_vm.vm.folder / name).read_bytes() for name in ("dockerd.log", "registry.log")]
    everything = [*leaks, out.encode(), err.encode(), history.encode(), *files, *logs]
    assert [content[:200] for content in everything for needle in needles if needle in content] == []
    assert push_seen.is_set()


def test_an_outdated_image_is_pushed_only_with_force(build_vm: BuildVm) -> None:
    build_vm.edit_bench("newer than the image")
    refused = build_vm.inv_refused("push")
    assert "changed since it was built; `inv build`" in refused
    assert "`inv push --force` pushes it as it is" in refused
    assert "pushing it as it is" in build_vm.inv("push", "--force").stdout
