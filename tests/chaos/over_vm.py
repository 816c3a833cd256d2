"""`inv build` and `push` over a build VM: real sshd, dockerd and registry, behind a proxy with fault switches.

Not covered: a disk that fills (tests/system/image has it), OCIR's own token service, images of gigabytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from tests.chaos.scenario import CommandResult, FaultThread
from tests.support.machines.build_vm import (
    DOCKER,
    EXCHANGES,
    MODEL,
    NAMESPACE,
    OTHER_UID,
    PASSWORD,
    PROXY,
    BuildVm,
    running_build_vm,
)
from tests.support.machines.network import USER
from tests.support.machines.registry_proxy import ALL_SWITCHES, RegistryProxy

IMAGE = "qlora-fleet:tiny"
PLANTED = "planted"  # a shared folder that another user created first
GROUP_SHARE = "group share"  # another user's group may exchange what is in it
METHODS, PATHS = (None, "GET", "HEAD", "POST", "PATCH", "PUT"), ("", "/manifests/", "/blobs/")


class BuildVmTarget:
    """A project on a laptop, and a VM to build on."""

    def __init__(self, folder: Path, build_vm: BuildVm, proxy: RegistryProxy) -> None:
        self.folder, self.build_vm, self.proxy = folder, build_vm, proxy
        self.planted = build_vm.create_shared_folder(PLANTED)
        self.precious = build_vm.network.home / "walked past"
        self.precious.mkdir()
        (self.precious / "thesis.tex").write_text("all of it")
        build_vm.chown_to_user(self.precious)
        build_vm.run_as_other_user(f"ln -s '{self.precious}' '{self.planted}/qlora-fleet'")
        self.group_share = build_vm.create_shared_folder(GROUP_SHARE)
        build_vm.vm.run("chown", f"root:{OTHER_UID}", str(self.group_share))
        build_vm.vm.run("chmod", "2775", str(self.group_share))
        self.exchange = Path(build_vm.tmpdir, "exchange.sh")  # run once as the engine's client starts the next build
        self._client = build_vm.folder / "docker-exchange"
        self._client.write_text(
            "#!/bin/sh\n"
            'for word in "$@"; do [ "$word" = build ] && build=1 && break; done\n'
            f"[ -n \"$build\" ] && mv '{self.exchange}' '{self.exchange}.now' 2>/dev/null && sh '{self.exchange}.now'\n"
            f'exec {DOCKER} "$@"\n'
        )
        self._client.chmod(0o755)
        folder = Path(build_vm.tmpdir, "qlora-fleet", "models", MODEL.replace("/", "--"))
        self._model = folder if folder.exists() else build_vm.put_model()
        self._flags = build_vm.model_flags(MODEL)
        self._edits = 0
        self._record = build_vm.project / "results" / "image.json"
        self._record.unlink(missing_ok=True)  # left by another test's push

    def next_command(self, chooser: random.Random) -> tuple[str, ...]:
        if chooser.random() < 0.6:
            self._edits += 1
            self.build_vm.edit_bench(f"edit {self._edits}")
        among = [("build",)] * 6 + [("push",)] * 3 + [("push", "--force")] * 2
        return chooser.choice(
            [*among, *(("build", "--tmpdir", str(path)) for path in (self.planted, self.group_share))]
        )

    def start(self, command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[str]:
        where = {"REGISTRY_IMAGE": f"{PROXY}/{NAMESPACE}/qlora-fleet:walk", "IMAGE_CLIENT": str(self._client)}
        with out.open("w") as to, err.open("w") as complaints:
            return self.build_vm.start_inv(*self._flags, *command, stdout=to, stderr=complaints, **where)

    @contextlib.contextmanager
    def injecting_faults(self, chooser: random.Random) -> Iterator[Callable[[], str]]:
        with _FaultInjector(self, random.Random(chooser.randrange(10**9)), count=chooser.randrange(4)) as injector:
            yield injector.describe

    def check(self, done: CommandResult) -> None:
        assert (self.precious / "thesis.tex").read_text() == "all of it"
        assert [path.name for path in self.precious.iterdir()] == ["thesis.tex"]
        assert done.code != 0 or "--tmpdir" not in done.command, "built in a folder that another user may change"
        assert list(self.group_share.iterdir()) == [], "wrote into a folder that another user's group may change"
        if done.code == 0 and done.command[0] == "build":
            self._check_image()
        if self._record.exists():
            self._check_pushed(json.loads(self._record.read_text())["digest"].removeprefix("sha256:"))
        assert self._record.exists() or done.code != 0 or done.command[0] != "push", "pushed without a record"

    def finish(self, at_last: Callable[..., CommandResult]) -> None:
        at_last("build")
        at_last("push")
        self.check(at_last("build"))
        assert self.build_vm.leftover_logins() == "", "a login is left"
        vm = self.build_vm.vm
        self.build_vm.wait_for(lambda: vm.run("pidof", "docker", check=False).returncode != 0, "no client left running")

    def _check_image(self) -> None:
        """Check that the image has the project's code and the model's files, byte for byte."""
        copy = self.build_vm.folder / "image content"
        container = self.build_vm.docker("create", IMAGE).stdout.strip()
        for source, name in (("/opt/qlora-fleet/.", "code"), ("/models/.", "models")):
            (copy / name).mkdir(parents=True)
            self.build_vm.docker("cp", f"{container}:{source}", str(copy / name))
        planted = self.build_vm.docker("cp", f"{container}:/workspace/mallory", str(copy), check=False)
        assert planted.returncode != 0, "the image was built by another Dockerfile than the project's"
        self.build_vm.docker("rm", container)
        code, models = _read_tree(copy / "code"), _read_tree(copy / "models")
        shutil.rmtree(copy)
        project = self.build_vm.project
        sent = {f"bench/{name}": content for name, content in _read_tree(project / "bench").items()}
        sent = {name: content for name, content in sent.items() if not name.endswith(".md")}  # documents are not sent
        sent["selfcheck.py"] = (project / "image" / "selfcheck.py").read_bytes()
        received = {name: content for name, content in code.items() if not name.startswith("locks/")}
        differing = [name for name in sorted(sent.keys() | received) if sent.get(name) != received.get(name)]
        assert not differing, f"the image has other code than the project: {differing}"
        for name, content in _read_tree(self._model).items():
            assert name == "manifest.json" or content in models.values(), f"the image has other weights: {name}"

    def _check_pushed(self, digest: str) -> None:
        """Check that the image of image.json is on the registry's disk, byte for byte."""
        blobs = self.build_vm.folder / "registry/docker/registry/v2/blobs/sha256"

        def content(named: str) -> bytes:
            manifest = (blobs / named[:2] / named / "data").read_bytes()
            assert hashlib.sha256(manifest).hexdigest() == named, f"the registry has other bytes than sha256:{named}"
            return manifest

        manifest = json.loads(content(digest))
        for part in (manifest["config"], *manifest["layers"]):
            content(part["digest"].removeprefix("sha256:"))


def _read_tree(folder: Path) -> dict[str, bytes]:
    """Read every file below the folder, except Python's caches."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class _FaultInjector(FaultThread):
    pause_sec = (0.3, 4.0)

    def __init__(self, target: BuildVmTarget, rng: random.Random, count: int) -> None:
        super().__init__(rng, count)
        self._vm, self._proxy, self._script = target.build_vm, target.proxy, target.exchange

    def __enter__(self) -> Self:
        if self.rng.random() < 0.4:  # before a build of two seconds, which later faults would miss
            self.inject(self._exchange)
        return super().__enter__()

    def faults_to_inject(self) -> list[Callable[[], None]]:
        network = [*[self._answers] * 4, self._cable, self._engine, self._registry]
        return [*network, self._jobs, self._password, self._exchange, self._exchange, self._group]

    def repair(self) -> None:
        self._for_a_while()  # the last fault must have an effect
        self._script.unlink(missing_ok=True)
        self._proxy.disarm()
        self._proxy.release()
        self._proxy.allow_stalls()
        self._vm.repair()

    def _for_a_while(self) -> None:
        self.wait(0.3, 6.0)

    def _answers(self) -> None:
        switch, method, path = (self.rng.choice(among) for among in (ALL_SWITCHES, METHODS, PATHS))
        self._proxy.arm(switch, method=method, path=path, times=self.rng.randrange(1, 4))

    def _cable(self) -> None:
        self._vm.network.cable.cut(self.rng.choice(("down", "drop")))
        self._for_a_while()
        self._vm.network.cable.repair()

    def _engine(self) -> None:
        self._vm.kill_engine()
        self._for_a_while()
        self._vm.repair()

    def _registry(self) -> None:
        self._vm.kill_registry()
        self._for_a_while()
        self._vm.repair()

    def _exchange(self) -> None:
        """Exchange files of the context or a byte of the weights: now, or as the engine's client starts."""
        context = f"{self._vm.tmpdir}/qlora-fleet/context"
        name, commands = self.rng.choice(list(EXCHANGES.items()))
        self.injected[name] += 1
        script = commands.format(context=context)
        if self.rng.random() < 0.3:
            self._vm.vm.run("sh", "-c", script, user=USER, check=False)
        else:
            self._script.write_text(script)

    def _jobs(self) -> None:
        """Kill our programs on the VM: the engine's client, or the job that called it."""
        self._vm.kill(self.rng.choice(("docker", "python3")))

    def _password(self) -> None:
        self._vm.write_password_file("not it")
        self._for_a_while()
        self._vm.write_password_file(PASSWORD)

    def _group(self) -> None:
        self._vm.set_docker_group()
        self._for_a_while()
        self._vm.set_docker_group(USER)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[BuildVmTarget]:
    """Run the build VM and its proxy for the block."""
    with running_build_vm() as build_vm, build_vm.proxy() as proxy:
        yield BuildVmTarget(folder, build_vm, proxy)
