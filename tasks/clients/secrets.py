"""Passwords and tokens: from a file that nobody else can read, from a pipe, or typed."""

import errno
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.records.atomic_files import read_regular
from remote.hosts.command import Secret
from remote.hosts.host import is_loopback
from remote.image.references import InvalidReference, check_user
from tasks.clients.prompt import encodable, typed
from tasks.errors import UsageError, file_errors, translate_errors
from tasks.settings.load import Settings

_MOST_BYTES = 1 << 20
_OPEN_FILES = ("/dev/fd", "/proc/self/fd")  # a shell's `<(program)` is a file there, open already


def read(settings: Settings, setting: str, name: str, *, in_header: bool = False) -> Secret:
    """The text of the file that `setting` names, less its last line break. Raises UsageError.

    What goes into a header as it is must be one line: it stands in the error of a client that refuses it.
    """
    path, text = settings.file(name), text_of(settings, setting, name).replace("\r\n", "\n")
    with file_errors(f"{setting}: {path}: cannot be read"):
        mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{setting}: {path}: others may read it; type: chmod 600 {path}")
    if not text.strip():
        raise UsageError(f"{setting}: {path}: is empty")
    text = text.removesuffix("\n")
    if in_header and not (text.isascii() and text.isprintable()):
        raise UsageError(
            f"{setting}: {path}: expected the secret alone, one line of ASCII; take out what else is in it"
        )
    return Secret(text)


def text_of(settings: Settings, setting: str, name: str) -> str:
    """The text of the file that `setting` names, which is read once: so it may be a shell's pipe. Raises UsageError."""
    path = settings.file(name)
    with file_errors(f"{setting}: {path}: cannot be read"):
        content = _piped(path) if str(path.parent) in _OPEN_FILES else read_regular(path, most_bytes=_MOST_BYTES)
        return content.decode("utf-8")


def _piped(path: Path) -> bytes:
    """The content of a file that is open already. Raises OSError, also for more than _MOST_BYTES."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES:,} bytes", str(path))
    return content


def check_hub(settings: Settings) -> None:
    """Raises UsageError where hub.endpoint would get the token over plain HTTP, unless it is the VM that fetches."""
    endpoint = settings.hub.endpoint
    if endpoint is None or settings.hub.token_file is None:
        return
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    is_there = parts.scheme == "http" and is_loopback(parts.hostname)
    if parts.scheme != "https" and not is_there:
        raise UsageError(
            f"hub.endpoint: {endpoint}: the token of hub.token_file would travel over plain HTTP; type it as "
            "https://..., or set hub.token_file to null"
        )


def index_of(settings: Settings) -> str | None:
    """image.index_url, which becomes an argument on the VM. Raises UsageError where a login stands in it."""
    index = settings.image.index_url
    if index is not None and "@" in index.partition("://")[2].partition("/")[0]:
        raise UsageError(
            "image.index_url: a login stands in it, and everybody on the VM may read arguments; leave it out here, and "
            "put it into a pip.conf there (image.pip_conf)"
        )
    return index


def check_registry_user(user: str, repository: str) -> None:
    """Raises UsageError for a registry.user that the repository's registry would refuse."""
    with translate_errors(UsageError, InvalidReference, before="registry.user: "):
        check_user(user, repository)


def registry_password(settings: Settings, user: str, registry: str, command: str) -> Secret:
    """The user's password: from registry.password_file, a pipe, or typed. Raises UsageError with an example."""
    name = settings.registry.password_file
    if name is not None:
        return read(settings, "registry.password_file", name)
    where = f"auth token of {user} at {registry}"
    text = typed(f"{where}: ") or _first_line(where)
    if not text:
        raise UsageError(
            f"no auth token for {user} at {registry} on standard input; for example: {command} < FILE-WITH-THE-TOKEN"
        )
    return Secret(text)


def _first_line(what: str) -> str:
    """The first line of standard input, less its line break. Raises UsageError."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        text = encodable(sys.stdin.readline(_MOST_BYTES + 1))
    except UnicodeError:
        raise UsageError(f"{what}: what came on standard input is not UTF-8 text") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{what}: the first line of standard input is longer than {_MOST_BYTES:,} characters")
    return text.removesuffix("\n")
