"""Passwords and tokens, read from a private file, a pipe or the terminal."""

import base64
import errno
import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.records.atomic_files import read_regular
from remote.hosts.command import Secret
from remote.hosts.host_protocol import is_loopback
from remote.image.references import InvalidReference, check_user
from remote.providers import registry_provider
from tasks.clients.prompt import check_private, check_utf8, prompt_hidden
from tasks.errors import UsageError, file_errors, translate_errors
from tasks.settings.layers import Settings

_MAX_SECRET_BYTES = 1 << 20
_FD_FOLDERS = ("/dev/fd", "/proc/self/fd")  # with already open files, such as a shell's `<(program)`


def read_secret(settings: Settings, setting: str, name: str, *, in_header: bool = False) -> Secret:
    """Read the file that `setting` names, without its last line break. Raises UsageError.

    `in_header`: the secret must be one line, because an HTTP client prints an invalid header in its error.
    """
    path = settings.resolve_path(name)
    with file_errors(f"{setting}: {path}: cannot be read"):
        is_open = str(path.parent) in _FD_FOLDERS  # read once, because it may be a shell's pipe
        content = _read_open_file(path) if is_open else read_regular(path, max_bytes=_MAX_SECRET_BYTES)
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    check_private(path, f"{setting}: {path}")
    if not text.strip():
        raise UsageError(f"{setting}: {path}: is empty")
    text = text.removesuffix("\n")
    if in_header and not (text.isascii() and text.isprintable()):
        raise UsageError(
            f"{setting}: {path}: expected only the secret, one line of ASCII", remedy="remove everything else"
        )
    return Secret(text)


def _read_open_file(path: Path) -> bytes:
    """Read a file of an open descriptor. Raises OSError, also beyond _MAX_SECRET_BYTES."""
    with path.open("rb") as file:
        content = file.read(_MAX_SECRET_BYTES + 1)
    if len(content) > _MAX_SECRET_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_SECRET_BYTES:,} bytes", str(path))
    return content


def check_hub_endpoint(settings: Settings) -> None:
    """Raise UsageError if the token would travel to hub.endpoint over plain HTTP, except on the loopback interface."""
    endpoint = settings.hub.endpoint
    if endpoint is None or settings.hub.token_file is None:
        return
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    is_local_http = parts.scheme == "http" and is_loopback(parts.hostname)
    if parts.scheme != "https" and not is_local_http:
        raise UsageError(
            f"hub.endpoint: {endpoint}: the token of hub.token_file would travel over plain HTTP",
            remedy="use https://..., or set hub.token_file to null",
        )


def checked_index_url(settings: Settings) -> str | None:
    """Return image.index_url, which becomes a command-line argument on the VM. Raises UsageError if it has a login."""
    index = settings.image.index_url
    if index is not None and "@" in index.partition("://")[2].partition("/")[0]:
        raise UsageError(
            "image.index_url: contains a login, and every user of the VM can read arguments",
            remedy="remove it here, and put it into a pip.conf on the VM (image.pip_conf)",
        )
    return index


def check_registry_user(user: str, repository: str) -> None:
    """Raise UsageError for a registry.user that the repository's registry would reject."""
    with translate_errors(UsageError, InvalidReference, prefix="registry.user: "):
        check_user(user, repository)


def registry_password(settings: Settings, user: str, registry: str, command: str) -> Secret:
    """Read the user's password from registry.password_file, the terminal or a pipe. Raises UsageError."""
    name = settings.registry.password_file
    if name is not None:
        return read_secret(settings, "registry.password_file", name)
    password_name = registry_provider(registry).password_name
    label = f"{password_name} of {user} at {registry}"
    text = prompt_hidden(f"{label}: ") or _read_stdin_line(label)
    if not text:
        raise UsageError(
            f"no {password_name} for {user} at {registry} on standard input",
            remedy=f"for example: {command} < FILE-WITH-IT",
        )
    return Secret(text)


def encoded_login(user: str, password: Secret) -> Secret:
    """Return `user:password` in base64, as a registry takes it."""
    return Secret(base64.b64encode(f"{user}:{password.reveal()}".encode()).decode())


def _read_stdin_line(label: str) -> str:
    """Read the first line of standard input, without its line break. Raises UsageError."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        text = check_utf8(sys.stdin.readline(_MAX_SECRET_BYTES + 1))
    except UnicodeError as error:
        raise UsageError(f"{label}: standard input is not UTF-8 text") from error
    if len(text) > _MAX_SECRET_BYTES:
        raise UsageError(f"{label}: the first line of standard input is longer than {_MAX_SECRET_BYTES:,} characters")
    return text.removesuffix("\n")
