"""`inv push` typed on a laptop: a real engine on the VM pushes to a real registry with TLS and a password.

The registry plays fra.ocir.io. What it does not play is OCIR's own repositories and rights, and its token service.
"""

import base64
import json
import os
import re
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts.local_fleet import wait_for_words
from tests.support.machines.build_vm import DOCKER, MARK, NAMESPACE, PASSWORD, PROXY, REGISTRY, REGISTRY_USER, BuildVm
from tests.support.machines.network import USER
from tests.support.machines.registry_proxy import Answer, Change, Cut, Endless, Redirect, Switch

REPOSITORY = f"{REGISTRY}/{NAMESPACE}/qlora-fleet"
IMAGE = "qlora-fleet:tiny"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True, scope="module")
def _image_to_push(build_vm_of_session: BuildVm) -> None:
    build_vm_of_session.begin_anew()
    build_vm_of_session.inv("build")


def record(build_vm: BuildVm) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((build_vm.project / "results" / "image.json").read_text())
    return found


def rebuild(build_vm: BuildVm, text: str) -> None:
    build_vm.edit_bench(text)
    build_vm.inv("build")


def change(build_vm: BuildVm, text: str) -> None:
    """Another image under the same name in no time: one label more, the same layers."""
    text = f"FROM {IMAGE}\nLABEL qlora-fleet.test={json.dumps(text)}\n"
    build_vm.docker("build", "--quiet", "--tag", IMAGE, "-", input=text, env={**os.environ, "DOCKER_BUILDKIT": "1"})


BAD_NAMES = {
    "no image": ({"REGISTRY_IMAGE": ""}, "registry.image: not set"),
    "no region key": ({"REGISTRY_IMAGE": "frankfurt.ocir.io/ns/repo:1"}, "'frankfurt' is no region key"),
    "no namespace": ({"REGISTRY_IMAGE": "fra.ocir.io/repo:1"}, "OCIR needs the tenancy's namespace"),
    "upper case": ({"REGISTRY_IMAGE": "fra.ocir.io/ns/Repo:1"}, "'Repo': lower case letters"),
    "user of no tenancy": (
        {"REGISTRY_USER": "build@example.com"},
        "registry.user: 'build@example.com' does not begin with the tenancy's namespace",
    ),
    "user of another": ({"REGISTRY_USER": "other/build@example.com"}, f"the tenancy's namespace, {NAMESPACE}/"),
    "password for all": ({"REGISTRY_PASSWORD_FILE": "/etc/passwd"}, "others may read it; type: chmod 600"),
}


@pytest.mark.parametrize("mistake", BAD_NAMES)
def test_a_name_that_cannot_be_is_refused_before_anything_is_asked(build_vm: BuildVm, mistake: str) -> None:
    settings, line = BAD_NAMES[mistake]
    before = build_vm.registry_log()
    assert line in build_vm.refused("push", **settings)
    assert build_vm.registry_log() == before


def test_a_wrong_password_is_said_with_the_forms_of_a_user_name(build_vm: BuildVm) -> None:
    build_vm.write_password_file("not it")
    refused = build_vm.refused("push")
    assert f"{REGISTRY} refuses user {REGISTRY_USER}" in refused
    assert f"{NAMESPACE.upper()}" not in refused
    assert "NAMESPACE/oracleidentitycloudservice/USER" in refused
    assert "not it" not in refused
    assert build_vm.logins_left() == ""


def test_a_push_is_confirmed_by_the_registry_and_its_digest_written_down(build_vm: BuildVm) -> None:
    done = build_vm.inv("push")
    found = record(build_vm)
    assert found["schema_version"] == 1
    assert found["repository"] == REPOSITORY
    assert found["reference"] == f"{REPOSITORY}:test"
    assert f"{REPOSITORY}@{found['digest']} pushed in" in done.stdout
    # The registry's own disk has that manifest, and all it names.
    blobs = build_vm.blobs()
    folder = build_vm.folder / "registry/docker/registry/v2/blobs/sha256"
    manifest = json.loads((folder / found["digest"][7:9] / found["digest"][7:] / "data").read_text())
    sizes = {part["digest"][7:]: part["size"] for part in (manifest["config"], *manifest["layers"])}
    assert {digest: blobs[digest] for digest in sizes} == sizes
    assert found["compressed_bytes"] == manifest["config"]["size"] + sum(part["size"] for part in manifest["layers"])
    assert found["labels"]["qlora-fleet.profile"] == "tiny"
    assert build_vm.logins_left() == ""


def test_a_pushed_image_is_signed_and_says_what_it_is_made_of(build_vm: BuildVm) -> None:
    key, public = build_vm.make_signing_key()
    signing = {"IMAGE_SIGN_KEY": str(key), "IMAGE_SIGN_PASSWORD_FILE": str(build_vm.password_file)}
    key.chmod(0o640)
    assert f"image.sign_key: {key}: others may read it; type: chmod 600" in build_vm.refused("push", **signing)
    key.chmod(0o600)
    said = build_vm.inv("push", **signing).stdout
    digest = record(build_vm)["digest"]
    assert f"signed with image.sign_key: {REPOSITORY}:{digest.replace(':', '-')}.sig" in said
    assert "already signed with image.sign_key" in build_vm.inv("push", **signing).stdout
    # Debian's registry is from before OCI 1.1: the list of documents is under a tag.
    done = build_vm.inv("image.bom", "--push")
    assert re.search(r"\d Python packages, [1-9]\d+ Debian packages, 0 models", done.stdout), done.stdout
    listed_by = f"tag {digest.replace(':', '-')}"
    assert f"attached 3 documents to {REPOSITORY}@{digest}, listed by {listed_by}" in done.stdout
    folder = build_vm.project / "results" / "image"
    packages = json.loads((folder / "bom.spdx.json").read_text())["packages"]
    assert next(package for package in packages if package["name"] == "tinystack")["checksums"], (
        "the lock has one file for it"
    )
    statement = json.loads((folder / "provenance.json").read_text())
    assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == digest
    shown = build_vm.inv("image.show", IMAGE_VERIFY_KEY=str(public)).stdout
    for line in (
        f"image       {digest}",
        "base        standin:base",
        " Debian",
        "valid for image.verify_key",
    ):
        assert line in shown
    assert "lock: sha256 " in shown
    # Another digest of the repository has none of that, and a key that is somebody else's none of its signatures.
    other = build_vm.make_signing_key("other")[1]
    done = build_vm.inv("image.show", code=4, IMAGE_VERIFY_KEY=str(other))
    assert "1 signatures, but no valid one for image.verify_key" in done.stderr
    done = build_vm.inv("image.show", "--digest", f"sha256:{'0' * 64}", code=2)
    assert "`inv push` puts it there" in done.stderr


def test_an_unchanged_push_sends_nothing_and_an_edit_sends_less_than_a_megabyte(build_vm: BuildVm) -> None:
    build_vm.inv("push")
    before, first = build_vm.blobs(), record(build_vm)["digest"]
    assert "nothing was sent" in build_vm.inv("push").stdout
    assert build_vm.blobs() == before
    rebuild(build_vm, "one line")
    build_vm.inv("push")
    new = {digest: size for digest, size in build_vm.blobs().items() if digest not in before}
    assert record(build_vm)["digest"] != first
    assert 0 < sum(new.values()) < 1_000_000, new


def test_an_engine_that_has_nothing_takes_the_layers_from_the_registry(build_vm: BuildVm) -> None:
    build_vm.edit_bench("with a cache inside")
    build_vm.inv("build", IMAGE_CACHE_TO="inline")
    build_vm.inv("push")
    layers = build_vm.layers(IMAGE)
    build_vm.docker("builder", "prune", "--all", "--force")
    settings = build_vm.folder / "cache.yaml"
    settings.write_text(json.dumps({"image": {"cache_from": [f"{REPOSITORY}:test"]}}))
    build_vm.inv("-f", str(settings), "build", "--force")
    log = (build_vm.jobs()[-1] / "log.txt").read_text()
    assert "Successfully installed tinystack" not in log
    assert build_vm.layers(IMAGE) == layers
    assert build_vm.logins_left() == ""


def test_a_tag_that_somebody_moved_is_pushed_anew_and_the_digest_stays(build_vm: BuildVm) -> None:
    build_vm.inv("push")
    digest = record(build_vm)["digest"]
    login = build_vm.folder / "other-login"
    build_vm.docker("--config", str(login), "login", "-u", REGISTRY_USER, "--password-stdin", REGISTRY, input=PASSWORD)
    build_vm.docker("tag", "standin:base", f"{REPOSITORY}:test")
    build_vm.docker("--config", str(login), "push", "--quiet", f"{REPOSITORY}:test")
    assert "pushed in" in build_vm.inv("push").stdout
    assert record(build_vm)["digest"] == digest


def test_a_tag_that_is_moved_during_the_push_is_refused(build_vm: BuildVm) -> None:
    change(build_vm, "a tag moved during the push")
    login = build_vm.folder / "third-login"
    build_vm.docker("--config", str(login), "login", "-u", REGISTRY_USER, "--password-stdin", REGISTRY, input=PASSWORD)
    build_vm.vm.run("chmod", "-R", "a+rX", str(login))
    push = f"{DOCKER} --config {shlex.quote(str(login))} push {REPOSITORY}:test"
    other = f"{DOCKER} tag standin:base {REPOSITORY}:test; {push}"
    done = build_vm.inv("push", code=4, IMAGE_CLIENT=build_vm.gate("push", after=other, is_open=True))
    assert "somebody moved the tag while this was pushed" in done.stderr


def test_a_reply_that_is_lost_after_the_registry_took_everything_costs_no_second_push(build_vm: BuildVm) -> None:
    change(build_vm, "a lost reply")
    lost = "echo 'received unexpected HTTP status: unexpected EOF' >&2; code=1"
    done = build_vm.inv("push", IMAGE_CLIENT=build_vm.gate("push", after=lost, is_open=True))
    assert "but the registry has all of it" in done.stdout
    assert done.stdout.count("The push refers to repository") == 1


def test_a_registry_that_dies_under_a_layer_is_waited_for_and_the_push_completes(build_vm: BuildVm) -> None:
    rebuild(build_vm, "a killed registry")
    # It is killed when an upload has begun.
    process, _ = build_vm.start_to_gate("push")
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
    out, _ = build_vm.ended(process, within_sec=250)
    assert "confirmed by the registry" in out
    assert record(build_vm)["digest"][7:] in build_vm.blobs()


def test_a_login_that_ends_during_the_push_is_renewed_once(build_vm: BuildVm) -> None:
    change(build_vm, "a login that ends")
    # The first push finds its login gone, as with a token that ran out; the second one finds its own.
    marker = f"{build_vm.tmpdir}/login-ended"
    ended = f"[ -e '{marker}' ] || {{ touch '{marker}'; rm -f /dev/shm/qlora-fleet-login-*/config.json; }}"
    done = build_vm.inv("push", IMAGE_CLIENT=build_vm.gate("push", before=ended, is_open=True))
    assert "logging in again" in done.stdout
    assert build_vm.logins_left() == ""
    # And with a password that no longer counts, the second login says so.
    change(build_vm, "a password that ends")
    Path(marker).unlink()
    process = build_vm.start("push", IMAGE_CLIENT=build_vm.gate("push", before=ended))
    build_vm.at_gate()
    build_vm.set_password("another one")
    build_vm.open_gate()
    assert "refuses user" in build_vm.ended(process, code=2)[1]
    build_vm.set_password(PASSWORD)
    assert build_vm.logins_left() == ""
    build_vm.inv("push")


@pytest.mark.parametrize("how", ["down", "laptop"])
def test_a_push_goes_on_without_link_and_laptop(build_vm: BuildVm, how: str) -> None:
    change(build_vm, f"push without {how}")
    jobs = len(build_vm.jobs())
    process, client = build_vm.start_to_gate("push")
    if how == "laptop":
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        process = build_vm.start("push", IMAGE_CLIENT=client)
        assert process.stdout is not None
        assert "a push is already running" in process.stdout.readline()
    else:
        build_vm.network.cable.cut("down")
        wait_for_words(process, "connecting again")
        build_vm.network.cable.mend()
    build_vm.open_gate()
    build_vm.ended(process)
    assert len(build_vm.jobs()) == jobs + 1
    assert record(build_vm)["digest"][7:] in build_vm.blobs()


HOSTILE: dict[str, tuple[Switch, dict[str, str], int, str]] = {
    "a redirect to plain HTTP": (
        Redirect(to="http://10.79.0.1:8099"), {"path": "/manifests/"}, 4,
        f"{PROXY} redirects to http://10.79.0.1:8099/v2/{NAMESPACE}/qlora-fleet/manifests/hostile, which is not https",
    ),
    "an answer without end": (Endless(), {"path": "/manifests/"}, 4, "with more than 4 MiB; given up"),
    "a web page": (Answer(status=200, body=b"<html>"), {"path": "/manifests/"}, 2, f"{PROXY} answers with a web page"),
    "no right to push": (
        Answer(status=403), {"method": "POST"}, 2,
        f"{PROXY}: user {REGISTRY_USER} may not push to {NAMESPACE}/qlora-fleet: 403 Forbidden; give that user the ",
    ),
    "a login that is never right": (
        Answer(status=401), {"path": "/manifests/"}, 2, f"{PROXY} refuses user {REGISTRY_USER} for",
    ),
}  # fmt: skip


def test_a_hostile_registry_is_named_with_the_remedy_and_an_honest_one_gets_the_image(build_vm: BuildVm) -> None:
    change(build_vm, "through a proxy")
    settings = {"REGISTRY_IMAGE": f"{PROXY}/{NAMESPACE}/qlora-fleet:hostile"}
    (build_vm.project / "results" / "image.json").unlink(missing_ok=True)
    with build_vm.proxy() as proxy:
        for what, (switch, which, exit_code, line) in HOSTILE.items():
            proxy.arm(switch, **which)  # type: ignore[arg-type]
            done = build_vm.inv("push", code=exit_code, **settings)
            proxy.disarm()
            assert line in done.stderr, what
        assert not (build_vm.project / "results" / "image.json").exists()
        # What may pass is waited for.
        proxy.arm(Cut(after=5), method="GET", path="/manifests/", times=1)
        proxy.arm(Answer(status=503), method="PATCH", times=1)
        done = build_vm.inv("push", **settings)
        assert f"{PROXY}/{NAMESPACE}/qlora-fleet@{record(build_vm)['digest']} pushed in" in done.stdout
        proxy.arm(Change(at=40), method="GET", path="/manifests/sha256:")
        done = build_vm.inv("push", code=4, **settings)
        assert "answers with other bytes than sha256:" in done.stderr
    assert build_vm.logins_left() == ""


def test_a_push_is_followed_by_the_same_alone_and_stopped_by_its_own_command(build_vm: BuildVm) -> None:
    change(build_vm, "a push that is stopped")
    process, client = build_vm.start_to_gate("push")
    for other in ("tes", "test1"):
        done = build_vm.inv("push", code=3, IMAGE_CLIENT=client, REGISTRY_IMAGE=f"{REPOSITORY}:{other}")
        assert "which is other work; when that has ended, `inv push`, or stop it: `inv push --cancel`" in done.stderr
    assert "no build runs there" in build_vm.refused("build", "--cancel")
    assert ": stopped" in build_vm.inv("push", "--cancel").stdout
    _, err = build_vm.ended(process, code=3, within_sec=120)
    assert "`inv push` starts it anew" in err
    assert f"; log: {build_vm.project}/results/jobs/push-" in err
    assert build_vm.logins_left() == ""


def test_who_may_not_use_the_engine_or_finds_it_down_is_told_so_and_not_that_the_registry_refuses(
    build_vm: BuildVm,
) -> None:
    build_vm.set_docker_group()
    assert "sudo usermod -aG docker $USER" in build_vm.refused("push")
    build_vm.set_docker_group(USER)
    refused = build_vm.refused("push", IMAGE_ENGINE="unix:///nowhere.sock")
    assert "sudo systemctl start docker" in refused
    assert "refuses" not in refused


def test_an_image_that_is_older_than_the_files_here_is_pushed_only_when_asked_for(build_vm: BuildVm) -> None:
    build_vm.edit_bench("newer than the image")
    refused = build_vm.refused("push")
    assert "its code, or a setting of it changed since it was built; `inv build`" in refused
    assert "`inv push --force` pushes it as it is" in refused
    assert "pushing it as it is" in build_vm.inv("push", "--force").stdout
    build_vm.inv("build")


def test_the_password_is_found_nowhere(build_vm: BuildVm) -> None:
    change(build_vm, "a secret")
    client = build_vm.gate("push")
    process = build_vm.start("push", IMAGE_CLIENT=client)
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

    job_log = threading.Thread(target=watch)
    job_log.start()
    try:
        build_vm.at_gate()
        build_vm.open_gate()
        out, err = build_vm.ended(process)
    finally:
        over.set()
        job_log.join(60)
    history = build_vm.docker("history", "--no-trunc", IMAGE).stdout + build_vm.docker("image", "inspect", IMAGE).stdout
    places = [
        path.read_bytes()
        for root in (
            build_vm.network.home,
            Path(build_vm.tmpdir),
            build_vm.project / "results",
            build_vm.folder / "registry",
        )
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    logs = [(build_vm.vm.folder / name).read_bytes() for name in ("dockerd.log", "registry.log")]
    everything = [*found, out.encode(), err.encode(), history.encode(), *places, *logs]
    assert [content[:200] for content in everything for needle in needles if needle in content] == []
    assert push_seen.is_set()
    assert build_vm.logins_left() == ""
