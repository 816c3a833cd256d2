"""Images: what their names say, and each recorded way in which a pull fails."""

import fnmatch
from dataclasses import dataclass

from tests.support.kubernetes.store.resources import document

CAUSES: tuple[str, ...] = tuple(document("image-pull.json"))
"""The names of the recorded causes, such as `token-401-wrong-user-form` and `tag-not-found`."""


@dataclass(frozen=True, kw_only=True)
class PullFailure:
    """How pulling one image fails: the runtime's message, and the kubelet's warning about secrets if it has one."""

    message: str
    secret_warning: str = ""


def failure(cause: str, image: str) -> PullFailure:
    """The recorded `cause`, worded for `image`."""
    recorded = document("image-pull.json")[cause]
    host, _, rest = image.partition("/")
    repository, _, tag = rest.partition("@") if "@" in rest else rest.rpartition(":")
    words = {"image": image, "host": host, "repository": repository or rest, "tag": tag}
    message = recorded["message"]
    for name, value in words.items():
        message = message.replace(f"{{{name}}}", value)
    return PullFailure(message=message, secret_warning=recorded.get("secret", ""))


class Images:
    """Which pulls fail just now."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}

    def fail(self, pattern: str, cause: str) -> None:
        """Every image whose name matches `pattern` (shell style) cannot be pulled, for `cause`."""
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} was not recorded; there are {', '.join(CAUSES)}")
        self._failing[pattern] = cause

    def mend(self, pattern: str) -> None:
        self._failing.pop(pattern, None)

    def failure_of(self, image: str) -> PullFailure | None:
        return next((failure(c, image) for p, c in self._failing.items() if fnmatch.fnmatch(image, p)), None)
