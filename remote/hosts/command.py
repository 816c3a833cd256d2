"""A command as a value: argv, environment and folder. All quoting happens here.

Secrets go to a command's standard input. Process listings show argv and environment, so a command with a secret there
cannot be constructed.
"""

import json
import re
import shlex
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

MASK = "***"
_known_values: set[str] = set()  # every secret of this process, masked in logs
_LONG_WORD, _HEX_DIGITS = re.compile(r"[\w+/=.~$%-]{20,}", re.ASCII), re.compile(r"[0-9A-Fa-f]{32}")
_MAX_ARGUMENT_CHARS, _SHORTENED_CHARS = 200, 40


class Secret:
    """A value that prints as `***` everywhere; only `reveal()` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value:
            raise ValueError("a secret is empty")
        self._value = value
        _known_values.add(value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


def mask(text: str, secrets: Iterable[Secret]) -> str:
    """Replace every secret in `text` with `***`, in its plain and in its shell-quoted form."""
    return _mask_values(text, [secret.reveal() for secret in secrets])


def mask_known(text: str) -> str:
    """Replace every secret that this process has read, like `mask`."""
    return _mask_values(text, list(_known_values))


def mask_opaque(text: str) -> str:
    """Replace words that look like a token or a key, in output of a program that handles unknown secrets."""
    return _LONG_WORD.sub(lambda match: MASK if _is_opaque(match[0]) else match[0], text)


def _is_opaque(word: str) -> bool:
    is_mixed = all(any(map(is_kind, word)) for is_kind in (str.islower, str.isupper, str.isdigit))
    return is_mixed or _HEX_DIGITS.search(word) is not None


def _mask_values(text: str, values: Iterable[str]) -> str:
    forms = {
        form
        for value in values
        for form in (value, shlex.quote(value), json.dumps(value)[1:-1], urllib.parse.quote(value, safe=""))
    }
    # Longest first: a quoted form contains the plain one.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _shorten(argument: str) -> str:
    first = next(iter(argument.strip().splitlines()), "")
    return (
        argument
        if len(argument) <= _MAX_ARGUMENT_CHARS and "\n" not in argument
        else f"{first[:_SHORTENED_CHARS]}\N{HORIZONTAL ELLIPSIS}"
    )


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command for a host, run in the working folder `folder` (None: the host chooses).

    `secrets` are sent to the command's standard input; the rendering and every error mask them.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    secrets: tuple[Secret, ...] = ()

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("a command needs at least one argument")
        texts = [*self.argv, *self.environment, *self.environment.values(), self.folder or ""]
        if any("\0" in word for word in texts):
            raise ValueError("a command cannot contain a NUL character")
        if any(secret.reveal() in word for secret in self.secrets for word in texts):
            raise ValueError("a secret is in argv, environment or folder; pass it on standard input")
        if any(not name or "=" in name for name in self.environment):
            raise ValueError("the name of an environment variable is empty or contains '='")

    def render(self) -> str:
        """Render the command as one line for a POSIX shell; secrets are masked after quoting."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        line = " ".join([*assignments, shlex.join(self.argv)])
        if self.folder is not None:
            line = f"cd {shlex.quote(self.folder)} && {line}"
        return mask(line, self.secrets)

    def brief(self) -> str:
        """Render the command for a message: a long argument, or one of several lines, is shortened."""
        return replace(self, argv=tuple(map(_shorten, self.argv))).render()

    def tail(self, text: str, lines: int = 5) -> str:
        """Return the last lines of this command's output, masked, for an error message."""
        return mask("\n".join(text.strip().splitlines()[-lines:]), self.secrets)
