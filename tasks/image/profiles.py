"""image/profiles.yaml: what an image can be built as; and the locks of its packages (`inv image.lock`)."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import yaml
from invoke.context import Context

from remote.image.plan import Profile
from tasks.errors import Resumable, TaskFailed, UsageError
from tasks.settings.load import Settings, load

PROFILES_FILE = "image/profiles.yaml"
LOCK_SEC = 1800.0
PLATFORM = "x86_64-manylinux_2_28"


def known(root: Path) -> dict[str, Profile]:
    """The profiles of the project, by name. Raises UsageError."""
    try:
        profiles = yaml.safe_load((root / PROFILES_FILE).read_text(encoding="utf-8"))
        return {name: Profile(name=name, **fields) for name, fields in profiles.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(
            f"{PROFILES_FILE}: cannot be used: {words}; `git checkout {PROFILES_FILE}` brings it back"
        ) from None


def read(settings: Settings) -> Profile:
    """The profile of the settings, with their base and Python where set. Raises UsageError."""
    profiles, name = known(settings.root), settings.image.profile
    if name not in profiles:
        raise UsageError(f"image.profile: expected one of {', '.join(profiles)}, found {name!r}; see {PROFILES_FILE}")
    profile = profiles[name]
    return dataclasses.replace(
        profile, base=settings.image.base or profile.base, python=settings.image.python or profile.python
    )


def image_name(settings: Settings) -> str:
    """The image's name and tag on the build VM; the target `dev` has a tag of its own."""
    tools = "" if settings.image.target == "prod" else f"-{settings.image.target}"
    return f"{settings.image.name}:{settings.image.profile}{tools}"


def make_locks(context: Context, profile: str | None, *, upgrade: bool) -> None:
    settings = load(context)
    there = known(settings.root)
    if profile is not None and profile not in there:
        raise UsageError(f"image.lock: --profile: expected one of {', '.join(there)}, found {profile!r}")
    for name in [profile] if profile is not None else there:
        folder = settings.root / "image" / "locks"
        argv = (
            *(sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--generate-hashes"),
            *("--only-binary", ":all:", "--python-version", there[name].python, "--python-platform", PLATFORM),
            *("--custom-compile-command", "inv image.lock", "--output-file", f"{name}.txt"),
            *(("--upgrade",) if upgrade else ()),
            f"{name}.in",
        )
        try:
            ended = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=LOCK_SEC, check=False)
        except subprocess.TimeoutExpired:
            raise Resumable(f"image.lock: {name}: not done after {LOCK_SEC:.0f} s; `inv image.lock`") from None
        if ended.returncode != 0:
            raise TaskFailed(f"image.lock: {name}: {' '.join(ended.stderr.split()[-60:]) or argv}")
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        packages = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
        print(f"image/locks/{name}.txt: {len(packages)} packages, {text.count('--hash=')} hashes")
