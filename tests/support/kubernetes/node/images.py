"""Images: recorded failures of pulls, and the pulls that currently fail."""

import fnmatch

from tests.support.kubernetes.store.resources import document

CAUSES: dict[str, str] = document("image-pull.json")
"""The runtime's message by cause, such as `token-401-wrong-user-form` and `tag-not-found`."""


def _message(cause: str, image: str) -> str:
    """Return the recorded message with the names of `image`."""
    host, _, rest = image.partition("/")
    repository, _, tag = rest.partition("@") if "@" in rest else rest.rpartition(":")
    message = CAUSES[cause]
    for name, value in {"image": image, "host": host, "repository": repository or rest, "tag": tag}.items():
        message = message.replace(f"{{{name}}}", value)
    return message


class Images:
    """The image pulls that currently fail."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}

    def fail_pulls(self, pattern: str, cause: str) -> None:
        """Make pulls of images that match the shell pattern fail for `cause`."""
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} is unknown; choose from {', '.join(CAUSES)}")
        self._failing[pattern] = cause

    def repair_pulls(self, pattern: str) -> None:
        self._failing.pop(pattern, None)

    def failure_of(self, image: str) -> str | None:
        """Return the runtime's message if pulls of this image fail, otherwise None."""
        return next((_message(c, image) for p, c in self._failing.items() if fnmatch.fnmatch(image, p)), None)
