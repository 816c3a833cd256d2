"""`inv push` typed on a laptop: a real engine on the VM pushes to a real registry with TLS and a password.

The registry plays fra.ocir.io. What it does not play is OCIR's own repositories and rights, and its token service.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.build_vm import DOCKER, MARK, NAMESPACE, PASSWORD, REGISTRY, REGISTRY_USER, Yard

REPOSITORY = f"{REGISTRY}/{NAMESPACE}/qlora-fleet"
IMAGE = "qlora-fleet:tiny"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True, scope="module")
def _image_to_push(it_of_session: Yard) -> None:
    it_of_session.begin_anew()
    it_of_session.inv("build", check=True)


def record(it: Yard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((it.project / "results" / "image.json").read_text())
    return found


def rebuild(it: Yard, text: str) -> None:
    it.edit_bench(text)
    it.inv("build", check=True)


def change(it: Yard, text: str) -> None:
    """Another image under the same name in no time: one label more, the same layers."""
    text = f"FROM {IMAGE}\nLABEL qlora-fleet.test={json.dumps(text)}\n"
    it.docker("build", "--quiet", "--tag", IMAGE, "-", input=text, env={**os.environ, "DOCKER_BUILDKIT": "1"})


def logins_left(it: Yard) -> list[str]:
    found: list[str] = it.vm.run("sh", "-c", "ls -d /dev/shm/qlora-fleet-login-* 2>/dev/null || true").stdout.split()
    return found


BAD_NAMES = {
    "no image": ({"REGISTRY_IMAGE": ""}, "registry.image: not set"),
    "no region key": ({"REGISTRY_IMAGE": "frankfurt.ocir.io/ns/repo:1"}, "'frankfurt' is no region key"),
    "no namespace": ({"REGISTRY_IMAGE": "fra.ocir.io/repo:1"}, "OCIR needs the tenancy's namespace"),
    "upper case": ({"REGISTRY_IMAGE": "fra.ocir.io/ns/Repo:1"}, "'Repo': lower case letters"),
    "user of no tenancy": (
        {"REGISTRY_USER": "build@example.com"},
        "registry.user: 'build@example.com': fra.ocir.io knows",
    ),
    "user of another": ({"REGISTRY_USER": "other/build@example.com"}, f"the namespace is {NAMESPACE}"),
    "password for all": ({"REGISTRY_PASSWORD_FILE": "/etc/passwd"}, "others may read it; type: chmod 600"),
}


@pytest.mark.parametrize("mistake", BAD_NAMES)
def test_a_name_that_cannot_be_is_refused_before_anything_is_asked(it: Yard, mistake: str) -> None:
    settings, line = BAD_NAMES[mistake]
    before = it.registry_log()
    done = it.inv("push", **settings)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert line in done.stderr
    assert it.registry_log() == before


def test_a_wrong_password_is_said_with_the_forms_of_a_user_name(it: Yard) -> None:
    it.write_password_file("not it")
    done = it.inv("push")
    it.write_password_file(PASSWORD)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{REGISTRY} refuses user {REGISTRY_USER}" in done.stderr
    assert f"{NAMESPACE.upper()}" not in done.stderr
    assert "NAMESPACE/oracleidentitycloudservice/USER" in done.stderr
    assert "not it" not in done.stderr
    assert logins_left(it) == []


def test_a_push_is_confirmed_by_the_registry_and_its_digest_written_down(it: Yard) -> None:
    done = it.inv("push", check=True)
    found = record(it)
    assert found["schema_version"] == 1
    assert found["repository"] == REPOSITORY
    assert found["reference"] == f"{REPOSITORY}:test"
    assert f"{REPOSITORY}@{found['digest']} pushed in" in done.stdout
    # The registry's own disk has that manifest, and all it names.
    blobs = it.blobs()
    folder = it.folder / "registry/docker/registry/v2/blobs/sha256"
    manifest = json.loads((folder / found["digest"][7:9] / found["digest"][7:] / "data").read_text())
    sizes = {part["digest"][7:]: part["size"] for part in (manifest["config"], *manifest["layers"])}
    assert {digest: blobs[digest] for digest in sizes} == sizes
    assert found["compressed_bytes"] == manifest["config"]["size"] + sum(part["size"] for part in manifest["layers"])
    assert found["labels"]["qlora-fleet.profile"] == "tiny"
    assert logins_left(it) == []


def test_an_unchanged_push_sends_nothing_and_an_edit_sends_less_than_a_megabyte(it: Yard) -> None:
    it.inv("push", check=True)
    before, first = it.blobs(), record(it)["digest"]
    assert "nothing was sent" in it.inv("push", check=True).stdout
    assert it.blobs() == before
    rebuild(it, "one line")
    it.inv("push", check=True)
    new = {digest: size for digest, size in it.blobs().items() if digest not in before}
    assert record(it)["digest"] != first
    assert 0 < sum(new.values()) < 1_000_000, new


def test_a_tag_that_somebody_moved_is_pushed_anew_and_the_digest_stays(it: Yard) -> None:
    it.inv("push", check=True)
    digest = record(it)["digest"]
    login = it.folder / "other-login"
    it.docker("--config", str(login), "login", "-u", REGISTRY_USER, "--password-stdin", REGISTRY, input=PASSWORD)
    it.docker("tag", "standin:base", f"{REPOSITORY}:test")
    it.docker("--config", str(login), "push", "--quiet", f"{REPOSITORY}:test")
    assert "pushed in" in it.inv("push", check=True).stdout
    assert record(it)["digest"] == digest


def test_a_tag_that_is_moved_during_the_push_is_refused(it: Yard) -> None:
    change(it, "a tag moved during the push")
    login = it.folder / "third-login"
    it.docker("--config", str(login), "login", "-u", REGISTRY_USER, "--password-stdin", REGISTRY, input=PASSWORD)
    it.vm.run("chmod", "-R", "a+rX", str(login))
    push = f"{DOCKER} --config {shlex.quote(str(login))} push {REPOSITORY}:test"
    other = f"{DOCKER} tag standin:base {REPOSITORY}:test; {push}"
    client = it.gate("push", after=other)
    it.open_gate()
    done = it.inv("push", IMAGE_CLIENT=client)
    assert done.returncode == 4
    assert "somebody moved the tag while this was pushed" in done.stderr


def test_a_reply_that_is_lost_after_the_registry_took_everything_costs_no_second_push(it: Yard) -> None:
    change(it, "a lost reply")
    client = it.gate("push", after="echo 'received unexpected HTTP status: unexpected EOF' >&2; code=1")
    it.open_gate()
    done = it.inv("push", check=True, IMAGE_CLIENT=client)
    assert "but the registry has all of it" in done.stdout
    assert done.stdout.count("The push refers to repository") == 1


def test_a_registry_that_dies_under_a_layer_is_waited_for_and_the_push_completes(it: Yard) -> None:
    rebuild(it, "a killed registry")
    # It is killed when an upload has begun.
    client = it.gate("push")
    process = it.start("push", IMAGE_CLIENT=client)
    it.at_gate()
    killed = threading.Event()

    def kill() -> None:
        uploads = it.folder / "registry/docker/registry/v2/repositories"
        it.wait_for(
            lambda: list(uploads.glob(f"{NAMESPACE}/qlora-fleet/_uploads/*")) or process.poll() is not None, "an upload"
        )
        killed.set()
        it.kill("docker-registry")

    thread = threading.Thread(target=kill)
    thread.start()
    it.open_gate()
    thread.join(120)
    assert killed.is_set()
    it.start_registry()
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, (out, err)
    assert "confirmed by the registry" in out
    assert record(it)["digest"][7:] in it.blobs()


def test_a_login_that_ends_during_the_push_is_renewed_once(it: Yard) -> None:
    change(it, "a login that ends")
    # The first push finds its login gone, as with a token that ran out; the second one finds its own.
    marker = f"{it.tmpdir}/login-ended"
    ended = f"[ -e '{marker}' ] || {{ touch '{marker}'; rm -f /dev/shm/qlora-fleet-login-*/config.json; }}"
    client = it.gate("push", before=ended)
    it.open_gate()
    done = it.inv("push", check=True, IMAGE_CLIENT=client)
    assert "logging in once more" in done.stdout
    assert logins_left(it) == []
    # And with a password that no longer counts, the second login says so.
    change(it, "a password that ends")
    Path(marker).unlink()
    client = it.gate("push", before=ended)
    process = it.start("push", IMAGE_CLIENT=client)
    it.at_gate()
    it.set_password("another one")
    it.open_gate()
    _, err = process.communicate(timeout=200)
    it.set_password(PASSWORD)
    assert process.returncode == 2
    assert "refuses user" in err
    assert logins_left(it) == []
    it.inv("push", check=True)


@pytest.mark.parametrize("how", ["down", "laptop"])
def test_a_push_goes_on_without_link_and_laptop(it: Yard, how: str) -> None:
    change(it, f"push without {how}")
    client, jobs = it.gate("push"), len(it.jobs())
    process = it.start("push", IMAGE_CLIENT=client)
    it.at_gate()
    if how == "laptop":
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        process = it.start("push", IMAGE_CLIENT=client)
        assert process.stdout is not None
        assert "a push is running already" in process.stdout.readline()
    else:
        it.ground.cable.cut("down")
        assert process.stdout is not None
        while "connecting again" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        it.ground.cable.mend()
    it.open_gate()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, (out, err)
    assert len(it.jobs()) == jobs + 1
    assert record(it)["digest"][7:] in it.blobs()


def test_the_password_is_found_nowhere(it: Yard) -> None:
    change(it, "a secret")
    client = it.gate("push")
    process = it.start("push", IMAGE_CLIENT=client)
    encoded = base64.b64encode(f"{REGISTRY_USER}:{PASSWORD}".encode())
    needles = [MARK.encode(), encoded, PASSWORD.encode(), json.dumps(PASSWORD).encode()[1:-1]]
    found: list[bytes] = []
    over, push_seen = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            for entry in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        said = (entry / name).read_bytes()
                    except OSError:
                        continue
                    found.extend(said for needle in needles if needle in said)
                    if b"docker-push" in said:
                        push_seen.set()
            over.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        it.at_gate()
        it.open_gate()
        out, err = process.communicate(timeout=200)
    finally:
        over.set()
        watcher.join(60)
    assert process.returncode == 0, (out, err)
    history = it.docker("history", "--no-trunc", IMAGE).stdout + it.docker("image", "inspect", IMAGE).stdout
    places = [
        path.read_bytes()
        for root in (it.ground.home, Path(it.tmpdir), it.project / "results", it.folder / "registry")
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    logs = [(it.vm.folder / name).read_bytes() for name in ("dockerd.log", "registry.log")]
    everything = [*found, out.encode(), err.encode(), history.encode(), *places, *logs]
    assert [content[:200] for content in everything for needle in needles if needle in content] == []
    assert push_seen.is_set()
    assert logins_left(it) == []
