"""Images: the recorded ways in which a pull fails, and which pulls fail just now."""

import fnmatch

from tests.support.kubernetes.store.resources import document

CAUSES: dict[str, str] = document("image-pull.json")
"""The runtime's message by cause, such as `token-401-wrong-user-form` and `tag-not-found`."""


def _message(cause: str, image: str) -> str:
    """The recorded message, worded for `image`."""
    host, _, rest = image.partition("/")
    repository, _, tag = rest.partition("@") if "@" in rest else rest.rpartition(":")
    message = CAUSES[cause]
    for name, value in {"image": image, "host": host, "repository": repository or rest, "tag": tag}.items():
        message = message.replace(f"{{{name}}}", value)
    return message


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

    def failure_of(self, image: str) -> str | None:
        """Why this image cannot be pulled, in the runtime's words; None where it can."""
        return next((_message(c, image) for p, c in self._failing.items() if fnmatch.fnmatch(image, p)), None)
