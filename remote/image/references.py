"""Names of registries, images and users, validated before anything is sent.

The syntax is that of the OCI distribution specification; a provider adds the rules of its own registry.
"""

import re
from dataclasses import dataclass

from bench.records.status import Failure
from remote.providers import registry_provider

_LABEL, _PART = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?P<host>(?:{_LABEL}(?:\.{_LABEL})+|localhost|{_LABEL}(?=:))(?::(?P<port>[0-9]{{1,5}}))?)"
    rf"/(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?\Z"
)


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
    name = _NAME.match(text)
    if name is None or not 0 < int(name["port"] or 443) < 1 << 16:
        raise InvalidReference(
            f"{text!r}: expected HOST/REPOSITORY:TAG, the repository in lower case and no digest, e.g. "
            "registry.example.com/team/qlora-fleet:1.0"
        )
    if (problem := registry_provider(name["host"]).image_problem(name["host"], name["path"].split("/"))) is not None:
        raise InvalidReference(f"{text!r}: {problem}")
    return Reference(host=name["host"], path=name["path"], tag=name["tag"] or default_tag)


def check_user(user: str, repository: str) -> None:
    """Check the form of a user name for the registry of `repository` (HOST/PATH). Raises InvalidReference."""
    if not user or not user.isprintable() or " " in user:
        raise InvalidReference(f"{user!r} is not a user name")
    host, _, path = repository.partition("/")
    if (problem := registry_provider(host).user_problem(user, path)) is not None:
        raise InvalidReference(problem)
