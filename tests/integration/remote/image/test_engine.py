"""The engine through Docker's SDK: its answers and faults, with a client that has prepared answers.

tests/system/image has a real engine behind SSH.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostError, TooMuchOutput
from remote.hosts.local import LocalHost
from remote.image.engine import EngineDown, EngineError, EngineImage, connect
from tests.support.machines.fake_engine import VERSION, fake_engine, requests_of

INFO = {"DockerRootDir": "/var/lib/docker", "Driver": "overlay2"}
IMAGE = {"Id": "i", "Size": 9, "Config": {"Labels": {"a": "b"}}}
PODMAN = {**VERSION, "Components": [{"Name": "Podman Engine"}]}


def host() -> LocalHost:
    return LocalHost(name="vm", workdir="/nowhere")


@pytest.mark.parametrize(("options", "error_class", "token"), [
    ({}, EngineError, r"/nowhere/docker: not found; .*docker\.io"),
    ({"complaint": "permission denied while trying to connect to the Docker"}, EngineError, "usermod -aG docker"),
    ({"complaint": "Cannot connect to the Docker daemon at unix:///x"}, EngineDown, "sudo systemctl start docker"),
    ({"complaint": "failed to open the raw stream connection: dial unix /x: connect: no such file or directory"},
     EngineDown, "sudo systemctl start docker"),
    ({"complaint": "failed to open the raw stream connection: dial unix /x: connect: permission denied"},
     EngineError, "usermod -aG docker"),
    ({"complaint": "Error: unrecognized command `podman system dial-stdio`"}, EngineError, "image.client"),
    ({"complaint": "another cause"}, EngineError, "another cause"),
    ({"answers": {"GET /version": PODMAN}}, EngineError, "podman"),
    ({"answers": {"GET /version": {**VERSION, "ApiVersion": 3}}}, EngineError, "Docker engine"),
    ({"answers": {"GET /version": {"Client": {}}}}, EngineError, "Docker engine"),
    ({"answers": {"GET /version": 500}}, EngineError, "answer 500"),
    ({"--version": "echo Docker version 28.2.2,", "buildx": "exit 1"}, EngineError, "apt-get install docker-buildx"),
    ({"answers": {"GET /info": {}}}, EngineError, "Docker engine"),
])  # fmt: skip
def test_an_engine_that_cannot_build_is_reported(
    tmp_path: Path, options: dict[str, Any], error_class: type[HostError], token: str
) -> None:
    client = fake_engine(tmp_path, **options) if options else "/nowhere/docker"
    with pytest.raises(EngineError, match=token) as failed, connect(host(), client) as vm_engine:
        vm_engine.observe()
    assert type(failed.value) is error_class
    assert str(failed.value).startswith("vm: ")


@pytest.mark.parametrize(("client_version", "exit_code"), [("20.10.24+dfsg1", 1), ("28.2.2", 0)])
def test_an_engine_is_observed(tmp_path: Path, client_version: str, exit_code: int) -> None:
    commands = {"--version": f"echo 'Docker version {client_version}, build x'", "buildx": f"exit {exit_code}"}
    docker = fake_engine(tmp_path, {"GET /info": INFO}, **commands)
    with connect(host(), docker) as vm_engine:
        facts = vm_engine.observe()
    assert (facts.data_root, facts.storage_driver) == ("/var/lib/docker", "overlay2")
    assert requests_of(docker).count("Connection: close") == requests_of(docker).count("GET ") == 2


def test_an_image_is_read(tmp_path: Path) -> None:
    docker = fake_engine(tmp_path, {"GET /images/x:1/json": IMAGE})
    with connect(host(), docker) as vm_engine:
        assert vm_engine.image("x:1") == EngineImage(image_id="i", size=9, labels={"a": "b"})
        assert vm_engine.find_image("y:1") is None
        with pytest.raises(EngineError, match=r"^vm: .* y:1; `inv build`"):
            vm_engine.image("y:1")


LABEL, REPOSITORY = "qlora-fleet.build", "r.example/ns/repo"
OURS = {"Labels": {LABEL: "x"}, "Size": 100, "SharedSize": 30, "Containers": 0}
DF = {
    "Images": [
        {**OURS, "Id": "old", "RepoTags": None},
        {**OURS, "Id": "pushed", "RepoTags": [f"{REPOSITORY}:1"], "SharedSize": -1},
        {**OURS, "Id": "running", "RepoTags": ["<none>:<none>"], "Containers": 1},
        {**OURS, "Id": "current", "RepoTags": ["qlora-fleet:tiny", f"{REPOSITORY}:2"]},
        {**OURS, "Id": "kept", "RepoTags": [f"{REPOSITORY}-mine:1"]},
        {**OURS, "Id": "foreign", "RepoTags": None, "Labels": None},
    ],
    "BuildCache": [
        {"Size": 7, "InUse": False, "Shared": False},
        {"Size": 20, "InUse": True, "Shared": False},
        {"Size": 300, "InUse": False, "Shared": True},
    ],
}


def test_a_prune_removes_the_unused_cache_and_only_old_images_of_ours(tmp_path: Path) -> None:
    answers = {
        "GET /system/df": DF,
        "GET /images/old/json": {"RepoTags": []},
        "GET /images/pushed/json": {"RepoTags": [f"{REPOSITORY}:1"]},
        "DELETE /images/old": 409,  # a container uses it by now
        f"DELETE /images/{REPOSITORY}:1": {"x": 1},
        "POST /build/prune?all=True": {"SpaceReclaimed": 7},
    }
    docker = fake_engine(tmp_path, answers)
    with connect(host(), docker) as vm_engine:
        usage = vm_engine.usage(LABEL, REPOSITORY)
        assert usage.old_images == {"old": 70, "pushed": 100}
        assert vm_engine.usage(LABEL, None).old_images == {"old": 70}
        assert (usage.unused_cache_bytes, usage.prunable_bytes) == (7, 177)
        assert vm_engine.prune(usage) == 107  # not the image that is used by now
    changes = [line.split("?")[0] for line in requests_of(docker).splitlines() if line.startswith(("DELETE", "POST"))]
    assert [change.partition("/")[2].partition("/")[2] for change in changes] == [
        "images/old",
        f"images/{REPOSITORY}:1",
        "build/prune",
    ]


CONTAINER = {
    "POST /containers/create": {"Id": "c"},
    "POST /containers/c/start": {},
    "POST /containers/c/wait": {"StatusCode": 3},
    "GET /containers/c/json": {"Config": {"Tty": True}},
    "GET /containers/c/logs": {"report": 1},
    "DELETE /containers/c": {},
}


@pytest.mark.parametrize(("change", "token"), [
    ({}, ""),
    ({"POST /containers/c/start": 500}, "answer 500"),
    ({"POST /containers/c/wait": {"StatusCode": 0, "sleep": 60}}, "python check: timed out after 1 s in image"),
])  # fmt: skip
def test_a_check_container_is_removed_however_it_ends(tmp_path: Path, change: dict[str, Any], token: str) -> None:
    docker = fake_engine(tmp_path, {**CONTAINER, **change})
    with contextlib.ExitStack() as stack:
        if token:
            stack.enter_context(pytest.raises(EngineError, match=token))
        vm_engine = stack.enter_context(connect(host(), docker))
        completed = vm_engine.run_check("image", ("python", "check"), timeout_sec=1.0)
        assert (completed.exit_code, completed.stdout.strip()) == (3, b'{"report": 1}')
    assert "DELETE " in requests_of(docker)


def test_an_endless_answer_is_ended() -> None:
    def run(_command: Command, *, on_stdout: Callable[[bytes], None], **_options: object) -> Completed:
        on_stdout(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            on_stdout(bytes(1 << 20))

    endless: Any = SimpleNamespace(name="vm", run=run)
    with pytest.raises(TooMuchOutput, match=r"^vm: .* 64 MiB"), connect(endless, "docker"):
        pass
