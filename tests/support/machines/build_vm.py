"""Build VM for tests: a real Docker engine, a registry with the name `fra.ocir.io`, and a project on a laptop.

    with running_build_vm() as build_vm:
        build_vm.inv("build", "--tmpdir", build_vm.tmpdir)  # run on the laptop, over SSH to the VM
        build_vm.blobs()                                    # the blobs on the registry's disk

The engine is Debian's dockerd with BuildKit, the registry Debian's docker-registry with TLS and a password file, and
the base image consists of this machine's packages (tests/support/machines/base_image.py). The project's Dockerfile is
built on it unchanged, with a lock of one small wheel. Not covered: CUDA, and the gigabytes of the real lock.
"""

import base64
import contextlib
import hashlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.support.hosts.local_fleet import wait_for
from tests.support.machines import base_image
from tests.support.machines.machine import require
from tests.support.machines.network import USER, VM, Network, running_network
from tests.support.paths import ROOT

DOCKER = "/usr/bin/docker"  # Debian's client, which includes BuildKit; another client may precede it on PATH
REGISTRY, NAMESPACE = "fra.ocir.io", "axtenancy"
PLAIN_REGISTRY = "registry.example.com"  # the same registry under a name of no provider
NAMES = (REGISTRY, PLAIN_REGISTRY)
OTHER_USER, OTHER_UID = "mallory", 4713  # a user of the VM who may write into every shared folder
REGISTRY_USER = f"{NAMESPACE}/oracleidentitycloudservice/build@example.com"
PLAIN_USER = "build"  # another user of the registry
SECRET_MARK = secrets.token_hex(4)  # unique to this test run
# bcrypt accepts at most 72 bytes.
PASSWORD = f"""it's a "pass" $word {SECRET_MARK}\nwith a second line {SECRET_MARK}"""
MODEL = "small-org/Small-1B"
DATA_ROOT = "/mnt/docker"  # the VM's /mnt is in memory: the engine's data need not reach a disk
TIMEOUT_SEC = 120.0
INV_TIMEOUT_SEC = 280.0
GROUP = 4712
# Shell scripts that change the context as the engine's client starts, after every check of ours.
EXCHANGES = {
    "the folder": "rm -rf {context}.ours; mv {context} {context}.ours; cp -a {context}.ours {context}; "
    "echo '# mallory' >> {context}/image/selfcheck.py",
    "bytes of the weights": "printf mallory | dd of={context}/models/00.tar bs=1 seek=5000 conv=notrunc status=none",
}


class BuildVm:
    """A running build VM. `folder` is accessible to the VM's user; `tmpdir` serves as the share."""

    def __init__(self, network: Network) -> None:
        self.network, self.vm, self.folder = network, network.vm, network.folder
        self.project = self.folder / "a 'project' of mine"
        self.tmpdir = f"{self.folder}/fss"
        self.socket = "/run/docker.sock"
        self.password_file = self.folder / "token"
        self._engine_count = 0
        self._engine: subprocess.Popen[Any] | None = None
        self._registry: subprocess.Popen[Any] | None = None
        self._processes: list[subprocess.Popen[str]] = []
        self._server = ForkServer(
            self.folder, INV_LIBRARIES, lambda argv, **options: network.laptop.start(*argv, **options)
        )

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    def reset(self) -> None:
        """Remove what a failed test may have left. Takes milliseconds if there is nothing to do."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                self.open_gate()  # a job that waits at the gate would block the next one
            process.communicate(timeout=TIMEOUT_SEC)
        self._processes.clear()
        self.repair()

    def repair(self) -> None:
        """Undo every fault; running commands continue."""
        self.network.cable.repair()
        self.write_password_file(PASSWORD)
        self.set_docker_group(USER)
        if self._engine is None or self._engine.poll() is not None:
            self.start_engine()
        if self._registry is None or self._registry.poll() is not None:
            self.start_registry()

    def inv(self, *arguments: str, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run `inv ...` on the laptop and assert its exit code.

        `settings` are INVOKE_... variables without their prefix.
        """
        environment = self._environment(settings)
        done = self._server.inv(*arguments, cwd=self.project, env=environment, timeout_sec=INV_TIMEOUT_SEC)
        assert done.returncode == code, f"inv {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def inv_refused(self, *arguments: str, code: int = 2, **settings: str) -> str:
        """Run a command that prints one line to standard error and nothing else. Returns that line."""
        done = self.inv(*arguments, code=code, **settings)
        (line,) = done.stderr.splitlines()
        assert done.stdout == ""
        return line

    def start_inv(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start `inv ...` on the laptop without waiting for it."""
        process = self._server.start_inv(*arguments, cwd=self.project, env=self._environment(settings))
        self._processes.append(process)
        return process

    def docker(self, *arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the engine's client on the VM as root."""
        done: subprocess.CompletedProcess[str] = self.vm.run(
            DOCKER, *arguments, check=check, timeout=INV_TIMEOUT_SEC, **options
        )
        return done

    def start_engine(self) -> None:
        """Start dockerd on the VM's default socket; its data persists across restarts."""
        self._engine_count += 1
        self._engine = self.vm.start(
            *("dockerd", "--data-root", DATA_ROOT, "--exec-root", f"/run/docker-{self._engine_count}"),
            *("--pidfile", f"/run/dockerd-{self._engine_count}.pid", "-H", f"unix://{self.socket}", "-G", "docker"),
            *("--bridge=none", "--iptables=false"),
            log="dockerd.log",
            env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        self.wait_for(lambda: self.docker("info", check=False).returncode == 0, "the engine")

    def stop_engine(self) -> None:
        self.kill("dockerd", "TERM")
        self.wait_for(lambda: self.docker("version", check=False).returncode != 0, "the engine's end")

    def set_docker_group(self, *members: str) -> None:
        """Set the users who may use the engine, from their next login on."""
        path = self.vm.folder / "etc" / "group"
        other_lines = [line for line in path.read_text().splitlines() if not line.startswith("docker:")]
        path.write_text("\n".join([*other_lines, f"docker:x:{GROUP}:{','.join(members)}"]) + "\n")

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
        self.wait_for(self._is_registry_up, "the registry")

    def kill(self, name: str, signal_name: str = "KILL") -> int:
        """Signal every process of the VM with that name. Returns their number."""
        pids = self.vm.run("pidof", name, check=False).stdout.split()
        if pids:
            self.vm.run("kill", f"-{signal_name}", *pids, check=False)
        return len(pids)

    def kill_engine(self) -> None:
        """Kill dockerd and containerd: a running containerd would lock its files against the next dockerd."""
        assert self._engine is not None
        for name in ("dockerd", "containerd"):
            self.kill(name)
        self._engine.wait(TIMEOUT_SEC)

    def kill_registry(self) -> None:
        assert self._registry is not None
        self.kill("docker-registry")
        self._registry.wait(TIMEOUT_SEC)

    def blobs(self) -> dict[str, int]:
        """Map the digest of each blob on the registry's disk to its size in bytes."""
        paths = (self.folder / "registry").glob("docker/registry/v2/blobs/sha256/*/*/data")
        return {path.parent.name: path.stat().st_size for path in paths}

    def write_password_file(self, password: str) -> None:
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(password + "\n")

    def job_folders(self) -> list[Path]:
        """List the folders of all jobs on the VM, the newest last."""
        folders = (self.network.home / ".qlora-fleet" / "jobs").glob("[!.]*")
        return sorted(folders, key=lambda folder: folder.name.split("-")[-2:])

    def gated_client(self, verb: str, before: str = "", after: str = "", *, is_open: bool = False) -> str:
        """Create a client that makes `verb` wait until `open_gate`, then runs `before`, Docker's client and `after`.

        `verb` is a command of the client, or part of the line of a request to the engine's API. `before` and `after`
        are shell scripts; `after` may change the exit code in $code, and the engine's response in the file $out. After
        `close_gate` the next call waits again. Returns the client's path.
        """
        path = self.folder / f"docker-{re.sub(r'[^a-z]', '', verb)}"
        path.write_text(
            "#!/bin/sh\n"
            "pipe=/tmp/gated.$$ out=/tmp/gated.$$.out\n"
            f'for word in "$@"; do [ "$word" = {verb} ] && gated=1 && break; done\n'
            f'send() {{ {DOCKER} "$@"; }}\n'
            'if [ "$1 $2" = "system dial-stdio" ]; then\n'
            "  IFS= read -r head; exec 3<&0\n"
            f'  case $head in *{verb}*) gated=1; exec 4>&1 > "$out";; esac\n'
            '  send() { mkfifo "$pipe"; { printf "%s\\n" "$head"; exec cat; } <&3 > "$pipe" &\n'
            f'    {DOCKER} "$@" < "$pipe"; code=$?; kill $!; rm "$pipe"; return $code; }}\n'
            "fi\n"
            '[ -n "$gated" ] || { send "$@"; exit; }\n'
            f"touch '{self.gate_file}.waiting'\n"
            f"while [ ! -e '{self.gate_file}' ]; do sleep 0.1; done\n"
            f'{before}\nsend "$@"\ncode=$?\n{after}\n[ ! -e "$out" ] || cat "$out" >&4; exit $code\n'
        )
        path.chmod(0o755)
        self.close_gate()
        if is_open:
            self.open_gate()
        return str(path)

    def start_inv_to_gate(self, verb: str, **settings: str) -> tuple[subprocess.Popen[str], str]:
        """Start `inv VERB` and wait until it is at the gate. Returns the process and the gated client."""
        client = self.gated_client("/push?" if verb == "push" else verb)
        process = self.start_inv(verb, IMAGE_CLIENT=client, **settings)
        self.wait_at_gate()
        return process, client

    def wait_for_exit(
        self, process: subprocess.Popen[str], *, code: int = 0, timeout_sec: float = 200.0
    ) -> tuple[str, str]:
        """Wait for a started command and assert its exit code. Returns its standard output and error."""
        out, err = process.communicate(timeout=timeout_sec)
        assert process.returncode == code, (out, err)
        return out, err

    @property
    def gate_file(self) -> str:
        return f"{self.tmpdir}/gate"

    def wait_at_gate(self) -> None:
        """Wait until the gated call has reached the gate."""
        self.wait_for(lambda: Path(f"{self.gate_file}.waiting").exists(), "the gated call")

    def open_gate(self) -> None:
        Path(self.gate_file).touch()

    def close_gate(self) -> None:
        for name in (self.gate_file, f"{self.gate_file}.waiting"):
            Path(name).unlink(missing_ok=True)

    def model_flags(self, *names: str) -> tuple[str, str]:
        """Return the flags that make `inv` include these models in the image."""
        path = self.folder / "models.yaml"
        path.write_text(json.dumps({"image": {"models": list(names)}}))
        return "-f", str(path)

    def layers(self, image: str) -> list[str]:
        output = self.docker("image", "inspect", image, "--format", "{{json .RootFS.Layers}}").stdout
        layers: list[str] = json.loads(output)
        return layers

    def edit_bench(self, text: str) -> None:
        with (self.project / "bench" / "machine" / "gpu_specs.py").open("a") as file:
            file.write(f"# {text}\n")

    def put_model(self) -> None:
        """Fetch a model of two shards and small files, always the same, from a cache on the VM, unless it is there."""
        if Path(self.tmpdir, "qlora-fleet", "models", MODEL.replace("/", "--")).exists():
            return
        snapshot = Path(self.tmpdir, "cache", f"models--{MODEL.replace('/', '--')}", "snapshots", "0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        shards = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
        for name in shards:
            (snapshot / name).write_bytes(random.Random(name).randbytes(1_000_000))
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict(zip("ab", shards, strict=True))})
        )
        self.chown_to_user(Path(self.tmpdir))
        self.inv("model.fetch", "--model", MODEL, "--cache", f"{self.tmpdir}/cache")

    def chown_to_user(self, path: Path) -> None:
        self.vm.run("chown", "-R", USER, str(path))

    wait_for = staticmethod(wait_for)

    def _is_registry_up(self) -> bool:
        url = f"https://{REGISTRY}/v2/"
        done = self.vm.run("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", url, check=False)
        return str(done.stdout) == "401"

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
        return {
            **inherited,
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
    """Run VM, engine, registry and project. Skips the test if a requirement is missing."""
    import pytest

    require("dockerd", "docker-registry", "openssl", "curl", "pidof")
    reason = base_image.missing_requirement()
    if reason is not None:
        pytest.skip(reason)
    with running_network() as network, BuildVm(network) as build_vm:
        Path(build_vm.tmpdir).mkdir()
        build_vm.chown_to_user(Path(build_vm.tmpdir))
        (build_vm.folder / "laptop-home").mkdir()
        _make_project(build_vm)
        _make_certificate(build_vm)
        _write_password_hashes(build_vm.folder / "htpasswd")
        build_vm.vm.add_names(fra_ocir_io=VM, registry_example_com=VM)
        build_vm.reset()
        base_image.create(build_vm.folder / "base.tar")
        build_vm.docker("import", str(build_vm.folder / "base.tar"), "standin:base")
        yield build_vm
        build_vm.stop_engine()  # also removes its mounts, so that the folder can be deleted


def _make_project(build_vm: BuildVm) -> None:
    build_vm.project.mkdir()
    for name in ("bench", "remote", "reports", "tasks", "image"):
        shutil.copytree(ROOT / name, build_vm.project / name)  # includes __pycache__, for speed
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
            "environment: published",
        )
        file.write("\ntiny:\n" + "".join(f"  {line}\n" for line in lines))


def make_wheel(folder: Path) -> str:
    """Create a wheel with one line of Python. Returns its sha256."""
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


def _write_password_hashes(path: Path) -> None:
    """Write the registry's users and their password."""
    import bcrypt

    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    path.write_text(f"{REGISTRY_USER}:{hashed}\n{PLAIN_USER}:{hashed}\n")


def _make_certificate(build_vm: BuildVm) -> None:
    argv = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-keyout", str(build_vm.folder / "registry.key"), "-out", str(build_vm.folder / "registry.crt")),
        *("-subj", f"/CN={REGISTRY}", "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES)),
    )
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    for name in NAMES:
        trusted = build_vm.vm.folder / "etc" / "docker" / "certs.d" / name
        trusted.mkdir(parents=True, exist_ok=True)
        shutil.copy(build_vm.folder / "registry.crt", trusted / "ca.crt")
