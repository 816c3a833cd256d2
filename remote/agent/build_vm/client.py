"""Runner of the engine's client on the build VM, requests to the engine's API, and classification of their errors.

A client may print endlessly or hang: output has a size limit, a query has a deadline, and a push without progress is
reported and ended.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import urllib.parse
from collections import deque
from collections.abc import Iterator
from typing import IO, Any, cast

from remote.agent.build_vm.job import MAX_LINE_CHARS, JobLog, report_progress
from remote.agent.shared.errors import VmAgentError, engine_access_error
from remote.agent.shared.responses import read_response

QUERY_TIMEOUT_SEC = 120.0
MAX_OUTPUT_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 16
STALL_TIMEOUT_SEC = 900.0  # a registry may take minutes after a layer's last byte: it verifies and moves gigabytes
_STATUS = r"(?:status|code|http(?!s?:))[^\n]{0,40}\b"  # before a number that is neither a size nor a time
DISK_FULL = re.compile(
    rf"no space left on device|disk quota exceeded|{_STATUS}507\b|insufficient storage", re.IGNORECASE
)
# Failures that were observed to be transient: a connection cut or refused, an engine killed, a registry restarting or
# overloaded, and an upload session that the registry lost (often after a commit that succeeded; 416: in the middle).
TRANSIENT = re.compile(
    r"connection reset|broken pipe|unexpected eof|\beof\b|i/o timeout|tls handshake timeout|connection refused"
    r"|no route to host|network is unreachable|context deadline exceeded|blob upload unknown|blob_upload_unknown"
    rf"|use of closed network connection|{_STATUS}(?:416|429|500|502|503|504)\b"
    r"|bad gateway|service unavailable|too many requests|gateway time-?out|internal server error"
    r"|cannot connect to the docker daemon|error during connect|transport is closing|closing transport",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(rf"{_STATUS}403\b|forbidden", re.IGNORECASE)
UNAUTHORIZED = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|(?<!permission )denied:", re.IGNORECASE
)
TOO_LARGE = re.compile(rf"{_STATUS}413\b|request entity too large", re.IGNORECASE)
STAGE = re.compile(r"#\d+ \[([^\]]+)\]")


# --- the engine's API -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def request_engine(
    docker: list[str],
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    timeout_sec: float = QUERY_TIMEOUT_SEC,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request to the engine and yield its response, whose reading may wait `timeout_sec` for each part.

    The request goes through `docker system dial-stdio`, which finds the engine as the client does. Raises VmAgentError.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(timeout_sec)
    connection = http.client.HTTPConnection("engine")
    connection.sock = ours
    with contextlib.closing(connection), theirs:
        dial = [*docker, "system", "dial-stdio"]
        process = subprocess.Popen(dial, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)
        theirs.close()  # with our copy open, the end of the client would not end the connection
        with process, contextlib.ExitStack() as stack:
            try:
                connection.request(method, path, headers={"Connection": "close", **(headers or {})})
                yield stack.enter_context(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                process.kill()
                complaint = cast("IO[bytes]", process.stderr).read(MAX_LINE_BYTES).decode(errors="replace").strip()
                message = complaint or f"the engine did not respond to {method} {path}: {error or type(error).__name__}"
                raise engine_access_error(complaint) or VmAgentError("transient", message) from error
            finally:
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_RDWR)  # ends a thread that reads the response
                process.kill()


def inspect_image(docker: list[str], name: str) -> dict[str, Any] | None:
    """Return the engine's record of an image; None if it has no such image. Raises VmAgentError."""
    with request_engine(docker, "GET", f"/images/{urllib.parse.quote(name)}/json") as response:
        content = read_response(response, max_bytes=MAX_OUTPUT_BYTES, timeout_sec=QUERY_TIMEOUT_SEC)
    if response.status == 404:
        return None
    if response.status != 200:
        raise _refusal(response, content)
    return _parse_object(content, name)


def _parse_object(content: bytes, label: str) -> dict[str, Any]:
    try:
        return {**json.loads(content)}
    except (ValueError, TypeError) as error:
        raise VmAgentError("transient", f"the engine's answer about {label} is not JSON") from error


def tag_image(docker: list[str], image_id: str, repository: str, tag: str) -> None:
    """Give an image a name. Raises VmAgentError, of kind changed if the image is gone."""
    query = urllib.parse.urlencode({"repo": repository, "tag": tag})
    with request_engine(docker, "POST", f"/images/{image_id}/tag?{query}") as response:
        if response.status == 404:
            raise VmAgentError("changed", f"the engine no longer has the image {image_id}")
        if response.status != 201:
            raise _refusal(response, response.read(MAX_LINE_BYTES))


def _refusal(response: http.client.HTTPResponse, content: bytes) -> VmAgentError:
    """Build the error for a response of the engine that is not a success."""
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, LookupError, TypeError):
        message = content[:MAX_LINE_CHARS].decode(errors="replace")
    return classify_failure([message or f"the engine returned {response.status} {response.reason}"], 1)


def push_image(job_log: JobLog, docker: list[str], reference: str, tag: str, login: str) -> None:
    """Push an image with a login (`user:password` in base64). Raises VmAgentError.

    A push without progress is reported every minute. After 15 minutes it is ended like a broken connection.
    """
    host = reference.partition("/")[0]
    user, _, password = base64.b64decode(login).decode().partition(":")
    account = json.dumps({"username": user, "password": password, "serveraddress": host}).encode()
    headers = {"X-Registry-Auth": base64.urlsafe_b64encode(account).decode()}
    path = f"/images/{urllib.parse.quote(reference)}/push?tag={urllib.parse.quote(tag)}"
    layers: dict[str, tuple[int, int]] = {}  # bytes sent of each layer, uncompressed, and its size

    def read_sizes() -> tuple[int, int]:
        sent, total = (sum(sizes) for sizes in zip((0, 0), *list(layers.values())))
        return sent, total

    with request_engine(docker, "POST", path, headers, timeout_sec=STALL_TIMEOUT_SEC) as response:
        if response.status != 200:
            raise _refusal(response, response.read(MAX_LINE_BYTES))
        with report_progress(job_log, f"pushing to {host}", read_sizes, "; `inv push --cancel` stops the push"):
            while line := response.readline(MAX_LINE_BYTES):
                message = _parse_object(line, f"the push of {reference}")
                if "error" in message:
                    raise classify_failure([str(message["error"])], 1)
                if text := _read_progress(message, layers):
                    job_log.add(text, "push")


def _read_progress(message: dict[str, Any], layers: dict[str, tuple[int, int]]) -> str | None:
    """Record the bytes of a layer. Returns the line to log: what is not a step of a layer's progress."""
    name, state, detail = message.get("id"), str(message.get("status") or ""), message.get("progressDetail") or {}
    if name is None:
        return state
    if isinstance(sent := detail.get("current"), int):
        total = detail.get("total")
        layers[name] = (sent, total if isinstance(total, int) else sent)
    elif state == "Pushed" and name in layers:
        layers[name] = (layers[name][1],) * 2
    return None if state in ("Preparing", "Waiting", "Pushing") else f"{name}: {state}"


# --- the engine's client ----------------------------------------------------------------------------------------------


def run_logged(
    job_log: JobLog, argv: list[str], *, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> tuple[int, list[str]]:
    """Run the engine's client to its end and log its output. Returns its exit code and last lines."""
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output = cast("IO[bytes]", process.stdout)
        for raw in iter(lambda: output.readline(MAX_LINE_BYTES), b""):
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            stage = STAGE.match(line)
            job_log.add(line, stage[1] if stage else None)
            last.append(line)
    job_log.write_progress()
    return process.returncode, list(last)


def classify_failure(lines: list[str], code: int) -> VmAgentError:
    """Classify a failed client run by the line of its output that shows the cause."""
    errors = [line for line in lines if re.search(r"error|denied|unauthorized|fail", line, re.IGNORECASE)] or lines
    kind, message = "failed", failed_build_step(lines) or (errors[-1] if errors else f"exit {code}, no message")
    if code < 0:  # killed, by a user, a shutdown or for memory: the job goes on from the engine's cache
        kind, message = "transient", f"the engine's client was ended by signal {-code} ({signal.strsignal(-code)})"
    # A step that ran out of space reports it well above the client's own last lines.
    for name, pattern, count in (
        ("full", DISK_FULL, 0),
        ("unauthorized", UNAUTHORIZED, 30),
        ("transient", TRANSIENT, 30),
        ("forbidden", FORBIDDEN, 10),
        ("usage", TOO_LARGE, 10),
    ):
        if matching := [line for line in lines[-count:] if pattern.search(line)]:
            kind, message = name, matching[-1]
            break
    remedy = "raise the limit of the registry, or of the proxy before it, for one layer" if kind == "usage" else ""
    return VmAgentError(kind, re.sub(r"^#\d+ +(?:[\d.]+ +)?", "", message)[:MAX_LINE_CHARS], remedy=remedy)


def failed_build_step(lines: list[str]) -> str | None:
    """Return the last output line of a build's failed step and the step's name; None if no step failed.

    The client's own last line only repeats the step's command.
    """
    failed = next((match for line in reversed(lines) if (match := re.match(r"#(\d+) ERROR: (.*)", line))), None)
    if failed is None:
        return None
    number, message = failed[1], failed[2]
    step_output = [match[1] for line in lines if (match := re.match(rf"#{number} +\d+\.\d+ +(\S.*)", line))]
    names = [match[1] for line in lines if (match := re.match(rf"#{number} \[([^\]]+)\]", line))]
    exit_code = re.search(r"exit code: \d+", message)
    if not step_output:
        return None
    return f"{step_output[-1]} (step [{names[0] if names else number}], {exit_code[0] if exit_code else message[:80]})"
