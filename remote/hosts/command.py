"""A command as a value: argv, environment and folder. All quoting happens here.

Secrets go to a command's standard input. argv and environment show in process listings, so a command that holds a
secret there cannot be constructed.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

MASK = "***"
_LONGEST_WORD, _SHOWN = 200, 40


class Secret:
    """A value that prints as `***` everywhere; only `reveal()` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value:
            raise ValueError("a secret is empty")
        self._value = value

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
    """`text` with every secret replaced by `***`, in its plain and in its shell-quoted form."""
    forms = {form for secret in secrets for form in (secret.reveal(), shlex.quote(secret.reveal()))}
    # Longest first: a quoted form contains the plain one.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _cut(word: str) -> str:
    first = next(iter(word.strip().splitlines()), "")
    return word if len(word) <= _LONGEST_WORD and "\n" not in word else f"{first[:_SHOWN]}\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run on a host, in the working folder `folder` (None: the host chooses).

    `secrets` is what the command gets on standard input; the rendering and every error mask it. The output of a command
    that `proves_itself` carries its own digests, which its reader checks: a host may leave out check sums of its own,
    but never the proof of the end.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    secrets: tuple[Secret, ...] = ()
    proves_itself: bool = False

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("a command has at least one word")
        words = [*self.argv, *self.environment, *self.environment.values(), self.folder or ""]
        if any("\0" in word for word in words):
            raise ValueError("a command cannot hold a NUL character")
        if any(secret.reveal() in word for secret in self.secrets for word in words):
            raise ValueError("a secret stands in argv, environment or folder; give it on standard input")
        if any(not name or "=" in name for name in self.environment):
            raise ValueError("the name of an environment variable is empty or holds '='")

    def render(self) -> str:
        """The command as one line a person can paste into a POSIX shell; secrets masked after quoting."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        line = " ".join([*words, shlex.join(self.argv)])
        if self.folder is not None:
            line = f"cd {shlex.quote(self.folder)} && {line}"
        return mask(line, self.secrets)

    def brief(self) -> str:
        """`render` for a message: a long word, or one of several lines, is cut to its beginning."""
        return replace(self, argv=tuple(map(_cut, self.argv))).render()

    def tail(self, text: str, lines: int = 5) -> str:
        """The last lines of this command's output, masked, for an error message."""
        return mask("\n".join(text.strip().splitlines()[-lines:]), self.secrets)
