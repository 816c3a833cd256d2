"""Build profiles of image/profiles.yaml, the image's name, and the lock of the hub's client."""

import dataclasses
from pathlib import Path

import yaml

from remote.image.plan import BuildProfile
from tasks.errors import UsageError
from tasks.settings.layers import Settings

PROFILES_FILE = "image/profiles.yaml"
HUB_CLIENT_LOCK = "image/locks/hub-client.txt"


def load_profiles(root: Path) -> dict[str, BuildProfile]:
    """Load all profiles, by name. Raises UsageError."""
    try:
        profiles = yaml.safe_load((root / PROFILES_FILE).read_text(encoding="utf-8"))
        return {name: BuildProfile(name=name, **fields) for name, fields in profiles.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError) as error:
        raise _unusable(PROFILES_FILE, error) from error


def selected_profile(settings: Settings) -> BuildProfile:
    """Return the profile of image.profile, with image.base applied. Raises UsageError."""
    profiles, name = load_profiles(settings.root), settings.image.profile
    if name not in profiles:
        raise UsageError(
            f"image.profile: expected one of {', '.join(profiles)}, found {name!r}", remedy=f"see {PROFILES_FILE}"
        )
    profile = profiles[name]
    return dataclasses.replace(profile, base=settings.image.base or profile.base)


def image_name(settings: Settings) -> str:
    """Return the image's name and tag on the build VM; the target `dev` has its own tag."""
    suffix = "" if settings.image.target == "prod" else f"-{settings.image.target}"
    return f"{settings.image.name}:{settings.image.profile}{suffix}"


def hub_client_lock(root: Path) -> str:
    """Read the lock of the hub's client. Raises UsageError."""
    try:
        return (root / HUB_CLIENT_LOCK).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unusable(HUB_CLIENT_LOCK, error) from error


def _unusable(path: str, error: Exception) -> UsageError:
    return UsageError(f"{path}: cannot be used: {' '.join(str(error).split())}", remedy=f"`git checkout {path}`")
