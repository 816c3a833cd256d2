"""image/profiles.yaml: what an image can be built as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.errors import UsageError
from tasks.settings import Settings

if TYPE_CHECKING:
    from remote.buildplan import Profile

PROFILES_FILE = "image/profiles.yaml"


def read(settings: Settings) -> Profile:
    """The profile that counts, with the settings' own base and Python. Raises UsageError."""
    import yaml

    from remote.buildplan import Profile

    path = settings.root / PROFILES_FILE
    try:
        known = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{PROFILES_FILE}: cannot be read: {error}") from None
    name = settings.image.profile
    if name not in known:
        raise UsageError(f"image.profile: expected one of {', '.join(known)}, found {name!r}; see {PROFILES_FILE}")
    try:
        profile = Profile(name=name, **known[name])
    except TypeError as error:
        raise UsageError(f"{PROFILES_FILE}: {name}: {error}") from None
    import dataclasses

    return dataclasses.replace(
        profile, base=settings.image.base or profile.base, python=settings.image.python or profile.python
    )


def image_name(settings: Settings) -> str:
    """What the image is called on the build VM; the one with tools on top has a tag of its own."""
    tools = "" if settings.image.target == "prod" else f"-{settings.image.target}"
    return f"{settings.image.name}:{settings.image.profile}{tools}"
