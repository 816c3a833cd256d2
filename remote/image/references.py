"""Names of registries, images and users, validated before anything is sent.

The syntax is that of the OCI distribution specification; a provider adds the rules of its own registry.
"""

import re
from dataclasses import dataclass

from bench.records.status import Failure
from remote.providers import registry_provider

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?\Z")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")


class InvalidReference(Failure, ValueError):
    """Error raised for an invalid name; the message says which part, and the expected form."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The name of an image in a registry: `host/path:tag`."""

    host: str
    path: str
    tag: str

    @property
    def repository(self) -> str:
        return f"{self.host}/{self.path}"

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


def parse_image_name(text: str, default_tag: str) -> Reference:
    """Parse and validate `text`. Raises InvalidReference."""
    host, _, rest = text.partition("/")
    path, colon, tag = rest.partition(":")
    if not rest or not _HOST.match(host) or not re.search(r"[.:]|^localhost$", host):
        raise InvalidReference(
            f"{text!r}: expected HOST/REPOSITORY:TAG, e.g. registry.example.com/team/qlora-fleet:1.0"
        )
    port = host.partition(":")[2]
    if port and not 0 < int(port) < 1 << 16:
        raise InvalidReference(f"{text!r}: port {port}: expected a number from 1 to 65535")
    if "@" in rest:
        raise InvalidReference(
            f"{text!r}: has a digest, which only a push can return", remedy="leave it out of the name"
        )
    parts = path.split("/")
    for part in parts:
        if not _PART.match(part):
            raise InvalidReference(
                f"{text!r}: {part!r}: only lower case letters, digits and single . _ - between them are allowed"
            )
    if colon and not _TAG.match(tag):
        raise InvalidReference(f"{text!r}: tag {tag!r}: up to 128 letters, digits and . _ -, not starting with . or -")
    if (problem := registry_provider(host).image_problem(host, parts)) is not None:
        raise InvalidReference(f"{text!r}: {problem}")
    return Reference(host=host, path=path, tag=tag or default_tag)


def check_user(user: str, repository: str) -> None:
    """Check the form of a user name for the registry of `repository` (HOST/PATH). Raises InvalidReference."""
    if not user or not user.isprintable() or " " in user:
        raise InvalidReference(f"{user!r} is not a user name")
    host, _, path = repository.partition("/")
    if (problem := registry_provider(host).user_problem(user, path)) is not None:
        raise InvalidReference(problem)
