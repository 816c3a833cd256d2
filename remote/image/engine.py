"""The container engine on the build VM, through its client: state, disks, images, check containers, registry logins.

The client's TMPDIR has no effect on a build. BuildKit keeps context, layers and cache below the engine's data-root, and
save, load and pull unpack in DOCKER_TMPDIR of the engine's own environment. Both folders are looked up with their file
systems.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from remote.agent.shared.errors import engine_access_error
from remote.hosts.base import (
    CommandTimedOut,
    Completed,
    Host,
    HostError,
    HostUnreachable,
    LoginRefused,
    check,
    parse_json,
    read_json,
)
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command, Secret
from remote.providers import registry_provider

LOGIN_FOLDER_PREFIX = "qlora-fleet-login-"
_TIMEOUT_SEC, _LOGIN_TIMEOUT_SEC = 60.0, 120.0
_START_TIMEOUT_SEC = 600.0  # from a login to the end of its job's start, and the job's grace at its deadline
_MIN_BUILDKIT_VERSION = (18, 9)
_EXIT_NOT_STARTED = 125  # `docker run` could not start the container
_CHECK_FLAGS = (
    *("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
    *("--tmpfs=/tmp:rw,mode=1777", "--tmpfs=/workspace:rw,mode=1777"),
)


class EngineError(HostError):
    """Error raised if the engine cannot build; the message ends with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """The engine's client on the VM: its program, and the engine's address if not the default."""

    program: str = "docker"
    address: str | None = None

    def command(self, *arguments: str, folder: str | None = None) -> Command:
        return Command(argv=(self.program, *arguments), environment=self.environment, folder=folder)

    @property
    def environment(self) -> dict[str, str]:
        # 18.09 to 22.06 build without BuildKit by default; newer clients add an attestation to every build.
        buildkit = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        return {**buildkit, **({"DOCKER_HOST": self.address} if self.address is not None else {})}


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
    """The engine's own report: data-root, storage driver."""

    data_root: str
    storage_driver: str


@dataclass(frozen=True, kw_only=True)
class DiskInfo:
    """The VM's disks and models. `docker_tmpdir` is None if it is not set or cannot be read."""

    folders: tuple[FolderInfo, ...]
    models: tuple[Mapping[str, Any], ...]
    docker_tmpdir: str | None

    def folder(self, path: str) -> FolderInfo:
        return next(folder for folder in self.folders if folder.path == path)


def observe(host: Host, client: Client) -> EngineFacts:
    """Query the engine.

    Raises EngineError if it is missing, down, not accessible to this user, or has no BuildKit.
    """
    not_docker = EngineError(
        f"{host.name}: {client.program} is not connected to a Docker engine (podman installed as docker?)",
        remedy="install Docker on the VM, or set image.client to its client",
    )
    version = _query(host, client, "version", "--format", "{{json .}}")
    try:
        client_version, server_version = (str(version[side]["Version"]) for side in ("Client", "Server"))
    except (KeyError, TypeError) as error:  # podman reports `Client` only
        raise not_docker from error
    if _version_numbers(server_version) < _MIN_BUILDKIT_VERSION:
        raise EngineError(
            f"{host.name}: engine {server_version} has no BuildKit", remedy="install Docker 20.10 or newer"
        )
    if _version_numbers(client_version) >= (23,):
        # From 23.0 the client builds through a plugin, which distributions package separately.
        plugin = client.command("buildx", "version")
        if host.run(plugin, timeout_sec=_TIMEOUT_SEC).exit_code != 0:
            raise EngineError(
                f"{host.name}: {client.program} {client_version} has no BuildKit: plugin buildx is missing",
                remedy="apt-get install docker-buildx (or docker-buildx-plugin), or set image.client to another client",
            )
    info = _query(host, client, "info", "--format", "{{json .}}")
    try:
        return EngineFacts(data_root=info["DockerRootDir"], storage_driver=info["Driver"])
    except KeyError as error:
        raise not_docker from error


def inspect(host: Host, client: Client, reference: str) -> Mapping[str, Any] | None:
    """Return the engine's record of an image, or None if it has no such image."""
    command = client.command("image", "inspect", reference)
    completed = host.run(command, timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code != 0 and b"No such image" in completed.stderr:
        return None
    if completed.exit_code != 0:
        raise to_engine_error(host, client, command, completed)
    image: Mapping[str, Any] = parse_json(host, completed.stdout, f"the output of {command.argv[0]}", itemgetter(0))
    return image


@dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """One step of an image's history: its command, its kind, and its size unpacked, in bytes."""

    step: str
    kind: str
    size: int


def layers(host: Host, client: Client, reference: str) -> list[ImageLayer]:
    """List the history steps of an image that are not empty, oldest first. Raises EngineError and HostError."""
    command = client.command("history", "--no-trunc", "--human=false", "--format={{json .}}", reference)
    completed = host.run(command, timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code != 0:
        raise to_engine_error(host, client, command, completed)
    lines = reversed(completed.stdout.splitlines())
    history = [parse_json(host, line, f"the output of {command.argv[0]}", _to_layer) for line in lines]
    return [layer for layer in history if layer.size > 0]


def _to_layer(entry: Any) -> ImageLayer:
    step = entry["CreatedBy"].removesuffix(" # buildkit").strip()
    return ImageLayer(step=step or "(imported)", kind=_layer_kind(step), size=int(entry["Size"]))


def _layer_kind(step: str) -> str:
    """Classify a step by the Dockerfile's line: weights, stack, code or system."""
    if step.startswith("ADD model[s]/"):
        return "weights"
    if step.startswith("COPY /layers/"):
        return "stack"
    return "code" if step.startswith("COPY") else "system"


def run_check(host: Host, client: Client, image_id: str, argv: tuple[str, ...], *, timeout_sec: float) -> Completed:
    """Run `argv` in a container under a pod's restrictions.

    The container has no network and no capability, and only /tmp and /workspace are writable. Raises EngineError if it
    cannot start or does not end in time, and HostError.
    """
    name = f"qlora-fleet-check-{secrets.token_hex(6)}"
    run = client.command("run", f"--name={name}", *_CHECK_FLAGS, image_id, *argv)
    try:
        completed = host.run(run, timeout_sec=timeout_sec)
    except CommandTimedOut as error:
        raise EngineError(f"{' '.join(argv)}: timed out after {timeout_sec:.0f} s in {image_id}") from error
    finally:
        host.run(client.command("rm", "--force", name), timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code == _EXIT_NOT_STARTED:
        raise to_engine_error(host, client, run, completed)
    return completed


def disk_info(host: Host, paths: Sequence[str], models: Sequence[tuple[str, str]] = ()) -> DiskInfo:
    """Read the file systems below `paths` and the `models` (name, folder) in one round trip. Raises HostError."""
    request = json.dumps({"places": list(dict.fromkeys(paths)), "models": models})
    command = inline_command(host, "remote.agent.scripts.disk_info", request)

    def to_info(document: Any) -> DiskInfo:
        folders = tuple(FolderInfo(**fields) for fields in document["places"])
        return DiskInfo(folders=folders, models=tuple(document["models"]), docker_tmpdir=document["docker_tmpdir"])

    return read_json(host, command, "the output of disk_info", to_info, timeout_sec=_TIMEOUT_SEC)


def to_engine_error(host: Host, client: Client, command: Command, completed: Completed) -> EngineError:
    """Build the error for a failed client command, with the remedy if the cause is known."""
    stderr = completed.stderr.decode(errors="replace").strip()
    if completed.exit_code == 127:
        return EngineError(
            f"{host.name}: {client.program}: not found",
            remedy="install Docker there (`apt-get install docker.io`), set "
            "image.client to its client, or set build.host to a VM that has it",
        )
    if (access_error := engine_access_error(stderr, client.address)) is not None:
        return EngineError(f"{host.name}: {access_error.problem}", remedy=access_error.remedy)
    return EngineError(f"{host.name}: exit {completed.exit_code}: {command.brief()}: {command.tail(stderr, lines=2)}")


def _query(host: Host, client: Client, *arguments: str) -> Any:
    command = client.command(*arguments)
    completed = host.run(command, timeout_sec=_TIMEOUT_SEC)
    # `docker version` prints the client's part and fails if the engine does not respond.
    if completed.exit_code != 0:
        raise to_engine_error(host, client, command, completed)
    document: dict[str, Any] = parse_json(host, completed.stdout, f"the output of {command.argv[0]}", dict)
    if document.get("ServerErrors"):  # `docker info` exits 0 despite them
        failed = Completed(exit_code=1, stderr=" ".join(document["ServerErrors"]).encode())
        raise to_engine_error(host, client, command, failed)
    return document


def _version_numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


def log_in(host: Host, client: Client, registry: str, user: str, password: Secret, *, deadline_sec: float) -> str:
    """Log the engine's client in, with a separate configuration folder. Returns that folder on the host.

    A job that ends within `deadline_sec` of its start uses the folder, and the caller removes it. Older folders,
    which killed logins left, are removed first. The password goes over standard input. Raises LoginRefused,
    HostUnreachable if the registry did not respond, EngineError, and like `Host.run`.
    """
    max_age_sec = deadline_sec + _START_TIMEOUT_SEC
    make = inline_command(host, "remote.agent.scripts.login", LOGIN_FOLDER_PREFIX, str(max_age_sec))
    output = check(host, make, host.run(make, timeout_sec=_LOGIN_TIMEOUT_SEC)).stdout
    folder = output.decode(errors="replace").strip()
    if LOGIN_FOLDER_PREFIX not in folder:  # without one, the client would store the password in its own configuration
        raise HostUnreachable(f"{host.name}: no folder for a login: {folder[:80]!r}")
    login = Command(
        argv=(client.program, "--config", folder, "login", "--username", user, "--password-stdin", registry),
        environment=client.environment,
        secrets=(password,),
    )
    try:
        completed = host.run(login, stdin=password.reveal().encode(), timeout_sec=_LOGIN_TIMEOUT_SEC)
        if completed.exit_code == 0:
            return folder
        stderr = completed.stderr.decode(errors="replace")
        if completed.exit_code == 127 or engine_access_error(stderr) is not None:
            raise to_engine_error(host, client, login, completed)
        complaint = login.tail(stderr, lines=1)
        if re.search(r"unauthorized|incorrect username|denied|\b401\b", complaint, re.IGNORECASE):
            remedy = registry_provider(registry).texts["registry-login"]
            raise LoginRefused(f"{registry} refused user {user}: {complaint}", remedy=remedy)
        raise HostUnreachable(f"{host.name}: login to {registry} failed: {complaint}")
    except BaseException:
        remove_login(host, folder)
        raise


def remove_login(host: Host, folder: str) -> None:
    """Remove the folder of a login. Raises like `Host.run`."""
    command = Command(argv=("rm", "-rf", "--", folder))
    check(host, command, host.run(command, timeout_sec=_LOGIN_TIMEOUT_SEC))
