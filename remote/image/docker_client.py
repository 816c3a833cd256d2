"""Client of the build VM's engine through the docker SDK: reads images and runs check containers.

Over SSH the SDK talks through `docker system dial-stdio` on the open connection. On this machine it talks to the
engine's socket.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import requests
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions
from docker.transport.basehttpadapter import BaseHTTPAdapter

from bench.records.units import format_mib
from remote.hosts.base import Completed, Host, HostUnreachable
from remote.hosts.command import Command
from remote.hosts.ssh.host import SshHost
from remote.image.engine import Client, EngineError, observe

if TYPE_CHECKING:
    from docker.models.images import Image

CALL_TIMEOUT_SEC = 120.0
MAX_RESPONSE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_PLACEHOLDER_URL = "tcp://engine:1"  # never connected to: _Adapter makes the connections


@dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """One step of an image's history: its command, its kind, and its size unpacked, in bytes."""

    step: str
    kind: str
    size: int


@contextlib.contextmanager
def connect(host: Host, client: Client) -> Iterator[docker.DockerClient]:
    """Connect the SDK to the engine of `host`.

    Raises like `observe`. Errors of the SDK are raised as EngineError or HostUnreachable.
    """
    version = observe(host, client).api_version
    if isinstance(host, SshHost):
        sdk = docker.DockerClient(base_url=_PLACEHOLDER_URL, version=version, timeout=int(CALL_TIMEOUT_SEC))
        address_options = ("-H", client.address) if client.address is not None else ()
        dial = Command(argv=(client.program, *address_options, "system", "dial-stdio"))
        sdk.api.mount("http://", _Adapter(lambda: host.dial(dial)))
    else:
        address = client.address or "unix:///var/run/docker.sock"
        sdk = docker.DockerClient(base_url=address, version=version, timeout=int(CALL_TIMEOUT_SEC))
    sdk.api.send = _limit_response_size(host.name, sdk.api.send)  # type: ignore[method-assign]
    try:
        yield sdk
    except docker.errors.ImageNotFound as error:
        raise EngineError(f"{host.name}: {error.explanation}", remedy="build it with `inv build`") from error
    except docker.errors.APIError as error:
        raise EngineError(f"{host.name}: the engine refused the request: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise HostUnreachable(f"{host.name}: no response from the engine: {error}") from error
    finally:
        sdk.close()


def _limit_response_size(name: str, send: Callable[..., requests.Response]) -> Callable[..., requests.Response]:
    """Wrap the session's `send` with a size limit for responses."""

    def bounded(request: requests.PreparedRequest, **options: Any) -> requests.Response:
        is_stream = options.pop("stream", False)
        response, content = send(request, stream=True, **options), bytearray()
        for chunk in () if is_stream else response.iter_content(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_RESPONSE_BYTES:
                response.close()
                raise EngineError(f"{name}: the engine's response exceeds {format_mib(MAX_RESPONSE_BYTES)}")
        if not is_stream:
            response._content = bytes(content)  # read by `content` and `json()`
        return response

    return bounded


def run_check(sdk: docker.DockerClient, image: str, argv: tuple[str, ...], *, timeout_sec: float) -> Completed:
    """Run `argv` in a container under a pod's restrictions.

    The container has no network and no capability, and only /tmp and /workspace are writable.
    """
    container = sdk.containers.create(
        image,
        list(argv),
        network_disabled=True,
        read_only=True,
        tmpfs={"/tmp": "rw,mode=1777", "/workspace": "rw,mode=1777"},  # noqa: S108 - inside the container
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
    )
    try:
        container.start()
        try:
            code = int(container.wait(timeout=timeout_sec)["StatusCode"])
        except requests.RequestException as error:
            if not _is_timeout(error):
                raise
            raise EngineError(f"{' '.join(argv)}: timed out after {timeout_sec:.0f} s in {image}") from error
        out, err = (container.logs(stdout=out, stderr=not out) for out in (True, False))
        return Completed(exit_code=code, stdout=out, stderr=err)
    finally:
        container.remove(force=True)


def _is_timeout(error: BaseException) -> bool:
    """Check whether this is a timeout, or wraps one: over a Unix socket one arrives inside a ConnectionError."""
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError):
        return True
    return any(isinstance(cause, BaseException) and _is_timeout(cause) for cause in error.args)


def layers(image: "Image") -> list[ImageLayer]:
    """List the history steps that are not empty, oldest first."""
    history: list[Mapping[str, Any]] = image.history()
    steps = [
        ImageLayer(step=step or "(imported)", kind=_layer_kind(step), size=entry["Size"])
        for entry in reversed(history)
        for step in [entry["CreatedBy"].removesuffix(" # buildkit").strip()]
    ]
    return [step for step in steps if step.size > 0]


def _layer_kind(created_by: str) -> str:
    """Classify a step by the Dockerfile's line: weights, stack, code or system."""
    if created_by.startswith("ADD model[s]/"):
        return "weights"
    if created_by.startswith("COPY /layers/"):
        return "stack"
    if created_by.startswith("COPY"):
        return "code"
    return "system"


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, dial: Callable[[], Any]) -> None:
        super().__init__("engine", timeout=CALL_TIMEOUT_SEC)
        self._dial = dial

    def connect(self) -> None:
        self.sock = self._dial()
        self.sock.settimeout(self.timeout)


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, dial: Callable[[], Any]) -> None:
        super().__init__("engine", timeout=CALL_TIMEOUT_SEC, maxsize=4)
        self._dial = dial

    def _new_conn(self) -> _Connection:
        return _Connection(self._dial)


class _Adapter(BaseHTTPAdapter):
    """Transport adapter for requests over a connection that `dial` opens."""

    def __init__(self, dial: Callable[[], Any]) -> None:
        self._pool = _Pool(dial)
        super().__init__()

    def get_connection_with_tls_context(self, *_request: Any, **_more: Any) -> _Pool:
        return self._pool

    def request_url(self, request: Any, _proxies: Any) -> str:
        url: str = request.path_url
        return url

    def close(self) -> None:
        self._pool.close()
