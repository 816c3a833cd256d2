"""The container engine on the build VM: whether it answers, has BuildKit, where its data is and how much room there is.

The client's TMPDIR has no effect on a build: BuildKit keeps context, layers and cache below the engine's data-root, and
save, load and pull unpack in DOCKER_TMPDIR of the engine's own environment. Both are looked up with their file systems.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host import Completed, Host, HostError, check, parsed
from remote.image.vm_agent.client import trouble

_LOOK_SEC = 60.0
_BUILDKIT_SINCE = (18, 9)


class EngineError(HostError):
    """The engine cannot build; the message ends with what to do."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """The engine's client on the VM: its program, and the engine's address if not the default."""

    program: str = "docker"
    address: str | None = None

    def command(self, *words: str, folder: str | None = None) -> Command:
        return Command(argv=(self.program, *words), environment=self.environment, folder=folder)

    @property
    def environment(self) -> dict[str, str]:
        # 18.09 to 22.06 build without BuildKit by default; newer ones add an attestation to every build.
        both = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        return {**both, **({"DOCKER_HOST": self.address} if self.address is not None else {})}


@dataclass(frozen=True, kw_only=True)
class EngineEndpoint:
    """A folder on the VM and its file system: that of the nearest parent if the folder does not exist."""

    path: str
    exists: bool
    is_folder: bool
    kind: str
    device: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What the engine reports about itself."""

    api_version: str
    data_root: str
    storage_driver: str


@dataclass(frozen=True, kw_only=True)
class DiskInfo:
    """The VM's disks and models. `docker_tmpdir` is None if it is not set or may not be read."""

    places: tuple[EngineEndpoint, ...]
    models: tuple[Mapping[str, Any], ...]
    docker_tmpdir: str | None

    def place(self, path: str) -> EngineEndpoint:
        return next(place for place in self.places if place.path == path)


def observe(host: Host, client: Client) -> EngineFacts:
    """Ask the engine. Raises EngineError for one that is missing, down, shut to this user, or without BuildKit."""
    version = _ask(host, client, "version", "--format", "{{json .}}")
    try:
        ours, server = version["Client"], {key: str(version["Server"][key]) for key in ("Version", "ApiVersion")}
    except (KeyError, TypeError):  # podman says `Client` alone
        raise EngineError(
            f"{host.name}: {client.program} speaks to no engine of Docker's (podman under that name does not); install "
            "Docker there, or name its client in image.client"
        ) from None
    if _numbers(server["Version"]) < _BUILDKIT_SINCE:
        raise EngineError(f"{host.name}: engine {server['Version']} has no BuildKit; install Docker 20.10 or newer")
    if _numbers(ours["Version"]) >= (23,):
        # From 23.0 on the client builds through a plugin that distributions package separately.
        plugin = client.command("buildx", "version")
        if host.run(plugin, timeout_sec=_LOOK_SEC).exit_code != 0:
            raise EngineError(
                f"{host.name}: {client.program} {ours['Version']} has no BuildKit: its plugin buildx is missing; "
                "apt-get install docker-buildx (or docker-buildx-plugin), or name another client in image.client"
            )
    info = _ask(host, client, "info", "--format", "{{json .}}")
    return EngineFacts(
        api_version=server["ApiVersion"],
        data_root=info["DockerRootDir"],
        storage_driver=info["Driver"],
    )


def inspect(host: Host, client: Client, reference: str) -> Mapping[str, Any] | None:
    """The engine's record of an image; None if it has no such image."""
    command = client.command("image", "inspect", reference)
    completed = host.run(command, timeout_sec=_LOOK_SEC)
    if completed.exit_code != 0 and b"No such image" in completed.stderr:
        return None
    if completed.exit_code != 0:
        raise to_engine_error(host, client, command, completed)
    document: list[Mapping[str, Any]] = parsed(host, completed.stdout, f"the answer to {command.argv[0]}")
    return document[0]


def disk_info(host: Host, places: Sequence[str], models: Sequence[tuple[str, str]] = ()) -> DiskInfo:
    """The file systems below `places` and the `models` (name, folder), in one round trip. Raises HostError."""
    asked = json.dumps({"places": list(dict.fromkeys(places)), "models": models})
    command = inline_command(host, "remote.image.vm_agent.scripts.disk_info", asked)
    completed = check(host, command, host.run(command, timeout_sec=_LOOK_SEC))
    answer = parsed(host, completed.stdout, f"the answer to {command.argv[0]}")
    seen = tuple(EngineEndpoint(**place) for place in answer["places"])
    return DiskInfo(places=seen, models=tuple(answer["models"]), docker_tmpdir=answer["docker_tmpdir"])


def to_engine_error(host: Host, client: Client, command: Command, completed: Completed) -> EngineError:
    """Why the client failed, with the remedy for a known reason."""
    stderr = completed.stderr.decode(errors="replace").strip()
    if completed.exit_code == 127:
        return EngineError(
            f"{host.name}: {client.program}: not found; install Docker there (`apt-get install docker.io`), or name "
            "its client in image.client"
        )
    if (known := trouble(stderr, client.address)) is not None:
        return EngineError(f"{host.name}: {known}")
    return EngineError(f"{host.name}: exit {completed.exit_code}: {command.brief()}: {command.tail(stderr, lines=2)}")


def _ask(host: Host, client: Client, *words: str) -> Any:
    command = client.command(*words)
    completed = host.run(command, timeout_sec=_LOOK_SEC)
    # `docker version` prints the client's half and fails when the engine does not answer.
    if completed.exit_code != 0:
        raise to_engine_error(host, client, command, completed)
    document = parsed(host, completed.stdout, f"the answer to {command.argv[0]}")
    if document.get("ServerErrors"):  # `docker info` exits 0 with them
        failed = Completed(exit_code=1, stderr=" ".join(document["ServerErrors"]).encode())
        raise to_engine_error(host, client, command, failed)
    return document


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
