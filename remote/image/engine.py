"""The container engine on the build VM, read through Docker's SDK: state, disks, images, check containers, space.

Each connection of the SDK is one `docker system dial-stdio` on the host, over the SSH connection that exists. It finds
the engine as the engine's client does. Builds, pushes, saves and loads are jobs on the VM (`remote.agent.build_vm`).

The client's TMPDIR has no effect on a build. BuildKit keeps context, layers and cache below the engine's data-root, and
save, load and pull unpack in its subfolder tmp, or in DOCKER_TMPDIR of the engine's own environment.
"""

import contextlib
import json
import re
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from remote.agent.shared.errors import engine_access_error
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, Host, HostError, TooMuchOutput, read_json
from remote.hosts.local import LocalHost

MAX_ANSWER_BYTES = 64 << 20
_TIMEOUT_SEC = 60.0
_PRUNE_TIMEOUT_SEC = 1800.0
_CONNECTION_TIMEOUT_SEC = 7200.0  # longer than a check container
_CHUNK_BYTES = 1 << 16
# The mark shows that the client has ended: a host's `run` would otherwise wait for the rest of its input.
_END_MARK = b"end of dial-stdio\n"
_MARK_SCRIPT = f'"$0" "$@"; code=$?; echo {shlex.quote(_END_MARK.decode().strip())}; exit $code'
_BUILDX_SCRIPT = '"$0" buildx version >/dev/null 2>&1 || "$0" --version'


class EngineError(HostError):
    """Error raised if the engine cannot build; the message ends with the remedy."""


class EngineDown(EngineError):
    """Error raised if the engine does not respond; it may be starting."""


@dataclass(frozen=True, kw_only=True)
class FolderInfo:
    """A folder on the VM and its file system (the nearest existing parent's if the folder does not exist)."""

    path: str
    exists: bool
    is_folder: bool
    kind: str
    device: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The engine's own report: its data-root and storage driver."""

    data_root: str
    storage_driver: str


@dataclass(frozen=True, kw_only=True)
class EngineUsage:
    """Bytes that a prune frees. `old_images`: id to its own bytes."""

    unused_cache_bytes: int
    old_images: Mapping[str, int]

    @property
    def prunable_bytes(self) -> int:
        return self.unused_cache_bytes + sum(self.old_images.values())


@dataclass(frozen=True, kw_only=True)
class DiskInfo:
    """The VM's disks and models."""

    folders: tuple[FolderInfo, ...]
    models: tuple[Mapping[str, Any], ...]

    def folder(self, path: str) -> FolderInfo:
        return next(folder for folder in self.folders if folder.path == path)


@dataclass(frozen=True, kw_only=True)
class EngineImage:
    """An image of the engine: its id, size unpacked in bytes, and labels."""

    image_id: str
    size: int
    labels: Mapping[str, str]

    @property
    def short_id(self) -> str:
        return self.image_id.removeprefix("sha256:")[:12]


def disk_info(host: Host, paths: Sequence[str], models: Sequence[tuple[str, str]] = ()) -> DiskInfo:
    """Read the file systems below `paths` and the `models` (name, folder) in one round trip. Raises HostError."""
    request = json.dumps({"places": list(dict.fromkeys(paths)), "models": models})
    command = inline_command(host, "remote.agent.scripts.disk_info", request)

    def to_info(document: Any) -> DiskInfo:
        folders = tuple(FolderInfo(**fields) for fields in document["places"])
        return DiskInfo(folders=folders, models=tuple(document["models"]))

    return read_json(host, command, "the output of disk_info", to_info, timeout_sec=_TIMEOUT_SEC)


def _sdk() -> Any:
    """Import Docker's SDK, which takes 0.15 s."""
    import docker

    return docker


@contextlib.contextmanager
def connect(host: Host, client: str) -> Iterator["Engine"]:
    """Connect to the engine of `host` that `client` finds, Docker's program or another one's path.

    Raises EngineError if it is missing, not Docker's or not accessible to this user, EngineDown, and HostError.
    """
    failures: list[HostError] = []
    with _dialled_socket(host, client, failures) as path, contextlib.ExitStack() as stack:
        try:
            with _valid_answer(host):
                newest = _sdk().constants.DEFAULT_DOCKER_API_VERSION
                version = stack.enter_context(_open_api(path, newest)).version(api_version=False)
                parts = [part["Name"] for part in version.get("Components") or ()]
                api_version = min(version["ApiVersion"], newest, key=_version_numbers)
            if parts and "Engine" not in parts:
                raise _not_docker(host, client)
            api = stack.enter_context(_open_api(path, api_version))
            yield Engine(host, client, api)
        except _sdk().errors.APIError as error:
            raise EngineError(f"{host.name}: the engine refused a request: {error.explanation or error}") from error
        except (_sdk().errors.DockerException, requests.RequestException) as error:
            if failures:
                raise failures[0] from error
            raise EngineDown(
                f"{host.name}: no valid answer from the engine: {error or type(error).__name__}"
            ) from error


@contextlib.contextmanager
def _valid_answer(host: Host) -> Iterator[None]:
    """Turn the errors of reading a document that no engine of Docker's would send into EngineError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise EngineError(f"{host.name}: the engine's answer is not that of a Docker engine: {error!r}") from error


@contextlib.contextmanager
def _open_api(path: str, version: str) -> Iterator[Any]:
    with contextlib.closing(_sdk().APIClient(f"unix://{path}", version=version, timeout=_TIMEOUT_SEC)) as api:
        api.headers["Connection"] = "close"  # the SDK would keep sessions open, of which sshd allows ten
        yield api


@contextlib.contextmanager
def _dialled_socket(host: Host, client: str, failures: list[HostError]) -> Iterator[str]:
    """Listen on a Unix socket in a private folder; each connection to it is one `docker system dial-stdio`."""
    with tempfile.TemporaryDirectory(prefix="qlora-fleet-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    peer = server.accept()[0]
                    threading.Thread(target=_serve, args=(host, client, peer, failures), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"{folder}/socket"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`


def _serve(host: Host, client: str, peer: socket.socket, failures: list[HostError]) -> None:
    """Run the client with a connection as its standard streams; a failure is recorded before the connection ends."""
    dial = Command(argv=(client, "system", "dial-stdio"))
    marked = Command(argv=("sh", "-c", _MARK_SCRIPT, *dial.argv))
    received_bytes = 0

    def forward(chunk: bytes) -> None:
        nonlocal received_bytes
        received_bytes += len(chunk)
        if received_bytes > MAX_ANSWER_BYTES:
            raise TooMuchOutput(f"{host.name}: the engine's answer exceeds {MAX_ANSWER_BYTES >> 20} MiB")
        if chunk.endswith(_END_MARK):
            peer.shutdown(socket.SHUT_RD)  # ends the wait for more input
            chunk = chunk[: -len(_END_MARK)]
        peer.sendall(chunk)

    with peer, peer.makefile("rb", buffering=0) as stdin:
        try:
            if isinstance(host, LocalHost):
                stream = peer.fileno()
                done = subprocess.run(dial.argv, stdin=stream, stdout=stream, stderr=subprocess.PIPE, check=False)
                completed = Completed(exit_code=done.returncode, stderr=done.stderr)
            else:
                completed = host.run(marked, stdin=stdin, on_stdout=forward, timeout_sec=_CONNECTION_TIMEOUT_SEC)
        except FileNotFoundError:
            completed = Completed(exit_code=127)
        except HostError as error:
            failures.append(error)
            return
        except OSError:  # the SDK has closed the connection
            return
        if completed.exit_code != 0:
            failures.append(to_engine_error(host, client, dial, completed))


class Engine:
    """A connected engine. All methods raise EngineError and HostError, through `connect`."""

    def __init__(self, host: Host, client: str, api: Any) -> None:
        self._host, self._client, self._api = host, client, api

    def observe(self) -> EngineFacts:
        """Return what a build depends on. Raises EngineError if there is no BuildKit."""
        name, program = self._host.name, self._client
        command = Command(argv=("sh", "-c", _BUILDX_SCRIPT, program))
        output = self._host.run(command, timeout_sec=_TIMEOUT_SEC).stdout.decode(errors="replace")
        client_version = re.search(r"Docker version ([^,]*)", output)  # without the plugin buildx
        # From 23.0 the client builds through a plugin, which distributions package separately.
        if client_version and _version_numbers(client_version[1]) >= (23,):
            raise EngineError(
                f"{name}: {program} {client_version[1]} has no BuildKit: plugin buildx is missing",
                remedy="apt-get install docker-buildx (or docker-buildx-plugin), or set image.client to another client",
            )
        with _valid_answer(self._host):
            info = self._api.info()
            return EngineFacts(data_root=str(info["DockerRootDir"]), storage_driver=str(info["Driver"]))

    def find_image(self, name: str) -> EngineImage | None:
        """Return an image, or None if the engine has no such image."""
        try:
            record = self._api.inspect_image(name)
        except _sdk().errors.NotFound:
            return None
        with _valid_answer(self._host):
            labels = dict(record["Config"].get("Labels") or {})
            return EngineImage(image_id=str(record["Id"]), size=int(record["Size"]), labels=labels)

    def image(self, name: str) -> EngineImage:
        """Return an image. Raises EngineError if the engine has no such image."""
        image = self.find_image(name)
        if image is None:
            raise EngineError(f"{self._host.name}: no image {name}", remedy="`inv build` builds it")
        return image

    def run_check(self, image_id: str, argv: tuple[str, ...], *, timeout_sec: float) -> Completed:
        """Run `argv` in a container under a pod's restrictions. Raises EngineError if it does not end in time.

        The container has no network and no capability, and only /tmp and /workspace are writable.
        """
        writable = dict.fromkeys(("/tmp", "/workspace"), "rw,mode=1777")  # noqa: S108 - inside the container
        limits = self._api.create_host_config(
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            tmpfs=writable,
            log_config=_sdk().types.LogConfig(type="json-file"),
        )
        container = self._api.create_container(image_id, list(argv), host_config=limits)["Id"]
        try:
            self._api.start(container)
            try:
                code = int(self._api.wait(container, timeout=timeout_sec)["StatusCode"])
            except requests.RequestException as error:
                if "timed out" not in str(error):
                    raise
                raise EngineError(f"{' '.join(argv)}: timed out after {timeout_sec:.0f} s in {image_id}") from error
            stdout, stderr = (self._api.logs(container, stdout=out, stderr=not out) for out in (True, False))
        finally:
            self._api.remove_container(container, force=True)
        return Completed(exit_code=code, stdout=stdout, stderr=stderr)

    def usage(self, label: str, repository: str | None) -> EngineUsage:
        """Return what a prune frees.

        Old images are those with `label`, without a container, and with no name but some of `repository`.
        """
        names = ("<none>", *(() if repository is None else (f"{repository}:",)))
        with _valid_answer(self._host):
            df = self._api.df()
            old_images = {
                str(image["Id"]): int(image["Size"]) - max(0, int(image["SharedSize"]))
                for image in df["Images"] or ()
                if label in (image.get("Labels") or {})
                and image["Containers"] <= 0
                and all(name.startswith(names) for name in image.get("RepoTags") or ())
            }
            unused = [part for part in df["BuildCache"] or () if not (part.get("Shared") or part["InUse"])]
            return EngineUsage(unused_cache_bytes=sum(int(part["Size"]) for part in unused), old_images=old_images)

    def prune(self, usage: EngineUsage) -> int:
        """Remove the old images and the unused build cache. Returns the freed bytes.

        An image that a container uses by now is kept.
        """
        self._api.timeout, freed_bytes = _PRUNE_TIMEOUT_SEC, 0
        for image_id, size in usage.old_images.items():
            with contextlib.suppress(_sdk().errors.APIError):
                for name in self._api.inspect_image(image_id)["RepoTags"] or [image_id]:
                    self._api.remove_image(name)
                freed_bytes += size
        return freed_bytes + int(self._api.prune_builds(all=True).get("SpaceReclaimed") or 0)


def _not_docker(host: Host, client: str) -> EngineError:
    return EngineError(
        f"{host.name}: {client} is not connected to a Docker engine (podman installed as docker?)",
        remedy="install Docker on the VM, or set image.client to its client",
    )


def to_engine_error(host: Host, client: str, command: Command, completed: Completed) -> EngineError:
    """Build the error for a failed client command, with the remedy if the cause is known."""
    stderr = completed.stderr.decode(errors="replace").strip()
    if completed.exit_code == 127:
        return EngineError(
            f"{host.name}: {client}: not found",
            remedy="install Docker there (`apt-get install docker.io`), set "
            "image.client to its client, or set build.host to a VM that has it",
        )
    if "podman" in stderr.lower():
        return _not_docker(host, client)
    if (access_error := engine_access_error(stderr)) is not None:
        error_class = EngineDown if access_error.kind == "transient" else EngineError
        return error_class(f"{host.name}: {access_error.problem}", remedy=access_error.remedy)
    return EngineError(f"{host.name}: exit {completed.exit_code}: {command.brief()}: {command.tail(stderr, lines=2)}")


def _version_numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
