"""image/profiles.yaml: what an image can be built as."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import UsageError
from tasks.settings.load import Settings

if TYPE_CHECKING:
    from remote.image.plan import Profile

PROFILES_FILE = "image/profiles.yaml"


def known(root: Path) -> dict[str, Profile]:
    """The profiles of the project, by name. Raises UsageError."""
    import yaml

    from remote.image.plan import Profile

    try:
        said = yaml.safe_load((root / PROFILES_FILE).read_text(encoding="utf-8"))
        return {name: Profile(name=name, **fields) for name, fields in said.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(
            f"{PROFILES_FILE}: cannot be used: {words}; `git checkout {PROFILES_FILE}` brings it back"
        ) from None


def read(settings: Settings) -> Profile:
    """The profile that counts, with the settings' own base and Python. Raises UsageError."""
    found, name = known(settings.root), settings.image.profile
    if name not in found:
        raise UsageError(f"image.profile: expected one of {', '.join(found)}, found {name!r}; see {PROFILES_FILE}")
    profile = found[name]
    return dataclasses.replace(
        profile, base=settings.image.base or profile.base, python=settings.image.python or profile.python
    )


def image_name(settings: Settings) -> str:
    """What the image is called on the build VM; the one with tools on top has a tag of its own."""
    tools = "" if settings.image.target == "prod" else f"-{settings.image.target}"
    return f"{settings.image.name}:{settings.image.profile}{tools}"
