"""The build VM with what the image needs: a real Docker engine, a registry that plays `fra.ocir.io`, and a project.

    with running_build_vm() as build_vm:
        build_vm.inv("build", "--tmpdir", build_vm.tmpdir)  # typed on the laptop, over SSH to the VM
        build_vm.blobs()                                  # what the registry holds, from its own disk

The engine is Debian's dockerd with BuildKit, the registry Debian's docker-registry behind TLS with a password file, and
the base image is made of this machine's packages (tests/support/machines/base_image.py). The project's own Dockerfile
is built on it unchanged, with a lock of one small wheel. What that does not cover: CUDA, and the gigabytes of the real
lock.
"""

import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from tests.support.forked import INV, ForkServer
from tests.support.hosts.local_fleet import wait_for
from tests.support.machines import base_image as base_image
from tests.support.machines.machine import require
from tests.support.machines.network import FAR_VM, USER, VM, Network, running_network
from tests.support.machines.registry_proxy import RegistryProxy
from tests.support.paths import ROOT

DOCKER = "/usr/bin/docker"  # Debian's, which has BuildKit inside; another client may stand before it on PATH
REGISTRY, NAMESPACE = "fra.ocir.io", "axtenancy"
PROXY = "iad.ocir.io"  # the same registry, through a proxy that may do anything to its answers
OTHER_USER, OTHER_UID = "mallory", 4713  # of the VM, who may write into every shared folder
REGISTRY_USER = f"{NAMESPACE}/oracleidentitycloudservice/build@example.com"
MARK = secrets.token_hex(4)  # no other process of this machine, of another run of these tests or of a person, says it
PASSWORD = f"""it's a "pass" $word {MARK}\nwith a second line {MARK}"""  # 72 bytes are all that bcrypt takes
MODEL = "small-org/Small-1B"
DATA_ROOT = "/mnt/docker"  # the VM's /mnt is memory: nothing of an engine for tests has to reach a disk
WAIT_SEC = 120.0
INV_SEC = 280.0
GROUP = 4712


class BuildVm:
    """See the module. `folder` is below a folder that the VM's user can reach; `tmpdir` plays the share."""

    def __init__(self, network: Network) -> None:
        self.network, self.vm, self.folder = network, network.vm, network.folder
        self.project = self.folder / "a 'project' of mine"
        self.tmpdir = f"{self.folder}/fss"
        self.sockets = "/run/docker.sock"
        self.password_file = self.folder / "token"
        self._engines = 0
        self._engine: subprocess.Popen[Any] | None = None
        self._registry: subprocess.Popen[Any] | None = None
        self._typed: list[subprocess.Popen[str]] = []
        self._server = ForkServer(self.folder, INV, lambda argv, **options: network.laptop.start(*argv, **options))

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    def begin_anew(self) -> None:
        """Undo what a test that failed in its middle may have left. Takes milliseconds where nothing is wrong."""
        for process in self._typed:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                self.open_gate()  # a job that waits there holds the turn of the next one
            process.communicate(timeout=WAIT_SEC)
        self._typed.clear()
        self.mend()

    def mend(self) -> None:
        """Undo every fault; what was typed goes on."""
        self.network.cable.mend()
        self.set_password(PASSWORD)
        self.write_password_file(PASSWORD)
        self.set_docker_group(USER)
        if self._engine is None or self._engine.poll() is not None:
            self.start_engine()
        if self._registry is None or self._registry.poll() is not None:
            self.start_registry()

    def inv(self, *words: str, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        """Type `inv ...` on the laptop; asserts its exit code. `settings` are INVOKE_... variables without their
        prefix."""
        done = self._server.inv(*words, cwd=self.project, env=self._environment(settings), timeout_sec=INV_SEC)
        assert done.returncode == code, f"inv {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def refused(self, *words: str, code: int = 2, **settings: str) -> str:
        """Type what is refused with this exit code and one line on standard error, which is returned, and no more."""
        done = self.inv(*words, code=code, **settings)
        (line,) = done.stderr.splitlines()
        assert done.stdout == ""
        return line

    def inv_as_root_of_the_vm(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Type `inv ...` on the VM itself, as root; asserts its exit code."""
        settings = {**self._environment({}), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        del settings["INVOKE_BUILD_HOST"]
        # Entering a machine forgets the folder one was in.
        argv = ("env", f"--chdir={self.project}", sys.executable, "-m", "invoke", *words)
        done: subprocess.CompletedProcess[str] = self.vm.run(*argv, env=settings, timeout=INV_SEC, check=False)
        assert done.returncode == code, f"inv {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def stop_share_engine(self) -> None:
        """End the engine of `inv vm.engine` and unmount its data, as a machine that goes down does."""
        pids = self.vm.run("sh", "-c", "pgrep -f '[d]ockerd.*qlora-fleet-engine' || true").stdout.split()
        if pids:
            self.vm.run("kill", *pids, check=False)
            self.wait_for(lambda: self.vm.run("kill", "-0", pids[0], check=False).returncode != 0, "its end")
        self.vm.run("umount", "--lazy", "/var/lib/qlora-fleet-engine", check=False)

    def start(
        self,
        *words: str,
        out: IO[str] | int = subprocess.PIPE,
        err: IO[str] | int = subprocess.PIPE,
        **settings: str,
    ) -> subprocess.Popen[str]:
        """Type `inv ...` on the laptop and do not wait."""
        environment = self._environment(settings)
        process = self._server.start_inv(*words, cwd=self.project, env=environment, stdout=out, stderr=err)
        self._typed.append(process)
        return process

    def docker(self, *words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """The engine's client on the VM, as root."""
        done: subprocess.CompletedProcess[str] = self.vm.run(DOCKER, *words, check=check, timeout=INV_SEC, **options)
        return done

    def start_engine(self) -> None:
        """Start dockerd on the VM's usual socket; its data outlives it."""
        self._engines += 1
        self._engine = self.vm.start(
            *("dockerd", "--data-root", DATA_ROOT, "--exec-root", f"/run/docker-{self._engines}"),
            *("--pidfile", f"/run/dockerd-{self._engines}.pid", "-H", f"unix://{self.sockets}", "-G", "docker"),
            *("--bridge=none", "--iptables=false"),
            log="dockerd.log",
            env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        self.wait_for(lambda: self.docker("info", check=False).returncode == 0, "the engine")

    def stop_engine(self) -> None:
        self.kill("dockerd", "TERM")
        self.wait_for(lambda: self.docker("version", check=False).returncode != 0, "the engine's end")

    def set_docker_group(self, *members: str) -> None:
        """Who may use the engine, from the next login on."""
        path = self.vm.folder / "etc" / "group"
        others = [line for line in path.read_text().splitlines() if not line.startswith("docker:")]
        path.write_text("\n".join([*others, f"docker:x:{GROUP}:{','.join(members)}"]) + "\n")

    def start_registry(self) -> None:
        config = self.folder / "registry.json"  # JSON is YAML
        document = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "registry")}, "delete": {"enabled": True}},
            "http": {
                "addr": f"{VM}:443",
                "tls": {"certificate": str(self.folder / "registry.crt"), "key": str(self.folder / "registry.key")},
            },
            "auth": {"htpasswd": {"realm": "test", "path": str(self.folder / "htpasswd")}},
        }
        config.write_text(json.dumps(document))
        self._registry = self.vm.start("docker-registry", "serve", str(config), log="registry.log")
        self.wait_for(self._answers, "the registry")

    @contextlib.contextmanager
    def proxy(self) -> Iterator[RegistryProxy]:
        """The registry behind a proxy with switches; its name is PROXY."""
        network, place = self.vm.network_of_this_thread, (FAR_VM, 443)
        key, certificate = self.folder / "registry.key", self.folder / "registry.crt"
        with RegistryProxy(
            upstream=f"https://{VM}", listen=place, certificate=certificate, key=key, network=network
        ) as running:
            yield running

    def shared_folder(self, name: str) -> Path:
        """A folder on the VM where everybody may make files, as on a share with mode 1777."""
        made = self.folder / name
        made.mkdir()
        made.chmod(0o1777)
        return made

    def as_other_user(self, script: str) -> None:
        """Shell text, typed on the VM by another user than the one who builds there."""
        if OTHER_USER not in (self.vm.folder / "etc" / "passwd").read_text():
            self.vm.add_user(OTHER_USER, uid=OTHER_UID)
        self.vm.run("sh", "-euc", script, user=OTHER_USER)

    def kill(self, name: str, number: str = "KILL") -> int:
        """Signal every process of the VM with that name; how many there were."""
        pids = self.vm.run("pidof", name, check=False).stdout.split()
        if pids:
            self.vm.run("kill", f"-{number}", *pids, check=False)
        return len(pids)

    def kill_engine(self) -> None:
        """dockerd dies, with what it has started: its containerd would keep its files from the next one."""
        assert self._engine is not None
        for name in ("dockerd", "containerd"):
            self.kill(name)
        self._engine.wait(WAIT_SEC)

    def kill_registry(self) -> None:
        assert self._registry is not None
        self.kill("docker-registry")
        self._registry.wait(WAIT_SEC)

    def blobs(self) -> dict[str, int]:
        """Digest to size in bytes of all the registry stores."""
        found = (self.folder / "registry").glob("docker/registry/v2/blobs/sha256/*/*/data")
        return {path.parent.name: path.stat().st_size for path in found}

    def registry_log(self) -> str:
        return (self.vm.folder / "registry.log").read_text(errors="replace")

    def set_password(self, password: str) -> None:
        """What the registry accepts from now on."""
        import bcrypt

        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (self.folder / "htpasswd").write_text(f"{REGISTRY_USER}:{hashed}\n")

    def write_password_file(self, password: str) -> None:
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(password + "\n")

    def make_signing_key(self, name: str = "sign") -> tuple[Path, Path]:
        """A private key whose pass phrase is the registry's password, as openssl makes one; and its public key."""
        key, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        phrase = {**os.environ, "PHRASE": PASSWORD}
        make = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-aes-256-cbc", "-out", str(key))
        for words in ((*make, "-pass"), ("pkey", "-in", str(key), "-pubout", "-out", str(public), "-passin")):
            subprocess.run(("openssl", *words, "env:PHRASE"), env=phrase, check=True, capture_output=True, timeout=60)
        key.chmod(0o600)
        return key, public

    def logins_left(self) -> str:
        """What is left on the VM of logins to the registry."""
        return str(self.vm.run("sh", "-c", "ls -d /dev/shm/qlora-fleet-login-* 2>/dev/null || true").stdout)

    def jobs(self) -> list[Path]:
        """The folders of all jobs on the VM, the newest last."""
        found = (self.network.home / ".qlora-fleet" / "jobs").glob("[!.]*")
        return sorted(found, key=lambda folder: folder.name.split("-")[-2:])

    def gate(self, verb: str, before: str = "", after: str = "", *, is_open: bool = False) -> str:
        """A client that is Docker's, save that `verb` waits until `open_gate`; then `before`, the real call, `after`.

        `before` and `after` are shell text; `after` finds the real exit code in $code and may change it. Until
        `close_gate` the next call waits anew.
        """
        path = self.folder / f"docker-{verb}"
        path.write_text(
            "#!/bin/sh\n"
            f'for word in "$@"; do [ "$word" = {verb} ] && gated=1 && break; done\n'
            f'[ -n "$gated" ] || exec {DOCKER} "$@"\n'
            f"touch '{self.gate_file}.waiting'\n"
            f"while [ ! -e '{self.gate_file}' ]; do sleep 0.1; done\n"
            f'{before}\n{DOCKER} "$@"\ncode=$?\n{after}\nexit $code\n'
        )
        path.chmod(0o755)
        self.close_gate()
        if is_open:
            self.open_gate()
        return str(path)

    def start_to_gate(self, verb: str, **settings: str) -> tuple[subprocess.Popen[str], str]:
        """Type `inv VERB`, which comes to this gate and waits there; the gated client as well."""
        client = self.gate(verb)
        process = self.start(verb, IMAGE_CLIENT=client, **settings)
        self.at_gate()
        return process, client

    def ended(self, process: subprocess.Popen[str], *, code: int = 0, within_sec: float = 200.0) -> tuple[str, str]:
        """Wait for what was started; asserts its exit code. What it said on both streams."""
        out, err = process.communicate(timeout=within_sec)
        assert process.returncode == code, (out, err)
        return out, err

    @property
    def gate_file(self) -> str:
        return f"{self.tmpdir}/gate"

    def at_gate(self) -> None:
        """Wait until the gated call is there."""
        self.wait_for(lambda: Path(f"{self.gate_file}.waiting").exists(), "the gated call")

    def open_gate(self) -> None:
        Path(self.gate_file).touch()

    def close_gate(self) -> None:
        for name in (self.gate_file, f"{self.gate_file}.waiting"):
            Path(name).unlink(missing_ok=True)

    def models(self, *names: str) -> tuple[str, str]:
        """The words that make `inv` put these models into the image."""
        path = self.folder / "models.yaml"
        path.write_text(json.dumps({"image": {"models": list(names)}}))
        return "-f", str(path)

    def layers(self, image: str) -> list[str]:
        said = self.docker("image", "inspect", image, "--format", "{{json .RootFS.Layers}}").stdout
        found: list[str] = json.loads(said)
        return found

    def edit_bench(self, text: str) -> None:
        with (self.project / "bench" / "machine" / "chips.py").open("a") as file:
            file.write(f"# {text}\n")

    def put_model(self) -> Path:
        """A model on the VM as `inv model.fetch` leaves one: two shards, small files, a manifest."""
        folder = Path(self.tmpdir, "qlora-fleet", "models", MODEL.replace("/", "--"))
        folder.mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1_000_000]}}).encode()
        for number in (1, 2):
            content = struct.pack("<Q", len(header)) + header + os.urandom(1_000_000)
            (folder / f"model-{number:05d}-of-00002.safetensors").write_bytes(content)
        (folder / "config.json").write_text("{}")
        files = [
            {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in sorted(folder.iterdir())
        ]
        (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": files}))
        self.own(Path(self.tmpdir))
        return folder

    def own(self, path: Path) -> None:
        self.vm.run("chown", "-R", USER, str(path))

    wait_for = staticmethod(wait_for)

    def _answers(self) -> bool:
        url = f"https://{REGISTRY}/v2/"
        done = self.vm.run("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", url, check=False)
        return str(done.stdout) == "401"

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
        return {
            **kept,
            "HOME": str(self.folder / "laptop-home"),
            "INVOKE_BUILD_HOST": "vm",
            "INVOKE_BUILD_TMPDIR": self.tmpdir,
            "INVOKE_IMAGE_PROFILE": "tiny",
            "INVOKE_IMAGE_WHEELS": "wheels",
            "INVOKE_IMAGE_NETWORK": "none",
            "INVOKE_IMAGE_CLIENT": DOCKER,
            "INVOKE_REGISTRY_IMAGE": f"{REGISTRY}/{NAMESPACE}/qlora-fleet:test",
            "INVOKE_REGISTRY_USER": REGISTRY_USER,
            "INVOKE_REGISTRY_PASSWORD_FILE": str(self.password_file),
            **{f"INVOKE_{name}": value for name, value in settings.items()},
        }


@contextlib.contextmanager
def running_build_vm() -> Iterator[BuildVm]:
    """Everything up, for as long as the block lasts. Skips the test where it cannot be made."""
    import pytest

    require("dockerd", "docker-registry", "openssl", "curl", "pidof")
    reason = base_image.why_not()
    if reason is not None:
        pytest.skip(reason)
    with running_network() as network, BuildVm(network) as build_vm:
        Path(build_vm.tmpdir).mkdir()
        build_vm.own(Path(build_vm.tmpdir))
        (build_vm.folder / "laptop-home").mkdir()
        _make_project(build_vm)
        _make_certificate(build_vm)
        build_vm.vm.knows(fra_ocir_io=VM, iad_ocir_io=FAR_VM)
        build_vm.begin_anew()
        base_image.make(build_vm.folder / "base.tar")
        build_vm.docker("import", str(build_vm.folder / "base.tar"), "standin:base")
        yield build_vm
        build_vm.stop_engine()  # its mounts go with it, so that the folder can be removed


def _make_project(build_vm: BuildVm) -> None:
    build_vm.project.mkdir()
    for name in ("bench", "remote", "reports", "tasks", "image"):
        shutil.copytree(ROOT / name, build_vm.project / name)  # with what is compiled
    for name in ("tasks.py", "invoke.yaml"):
        shutil.copy(ROOT / name, build_vm.project / name)
    digest = make_wheel(build_vm.project / "wheels")
    locks = build_vm.project / "image" / "locks"
    (locks / "tiny.in").write_text("tinystack==1.0\n")
    (locks / "tiny.txt").write_text(f"tinystack==1.0 \\\n    --hash=sha256:{digest}\n")
    with (build_vm.project / "image" / "profiles.yaml").open("a") as file:
        lines = (
            "base: standin:base",
            f'python: "{base_image.python_version()}"',
            "stack_bytes: 30000000",
            "runs_on_cpu: true",
        )
        file.write("\ntiny:\n" + "".join(f"  {line}\n" for line in lines))


def make_wheel(folder: Path) -> str:
    """A wheel of one line of Python; its sha256."""
    folder.mkdir()
    info = "tinystack-1.0.dist-info"
    files = {
        "tinystack/__init__.py": b'__version__ = "1.0"\n',
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tinystack\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for name, content in files.items()
    )
    path = folder / "tinystack-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _make_certificate(build_vm: BuildVm) -> None:
    words = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-keyout", str(build_vm.folder / "registry.key"), "-out", str(build_vm.folder / "registry.crt")),
        *("-subj", f"/CN={REGISTRY}", "-addext", f"subjectAltName=DNS:{REGISTRY},DNS:{PROXY}"),
    )
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    for name in (REGISTRY, PROXY):
        trusted = build_vm.vm.folder / "etc" / "docker" / "certs.d" / name
        trusted.mkdir(parents=True, exist_ok=True)
        shutil.copy(build_vm.folder / "registry.crt", trusted / "ca.crt")
