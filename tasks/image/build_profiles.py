"""Build profiles of image/profiles.yaml; `inv image.lock`: lock files of their packages."""

import dataclasses
import re
import sys
from pathlib import Path

import yaml
from invoke.context import Context

from remote.hosts.host_protocol import CommandTimedOut
from remote.hosts.local_program import run_program
from remote.image.plan import BuildProfile
from tasks.cli.command_result import CommandResult, plan_result
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.settings.layers import Settings, load

PROFILES_FILE = "image/profiles.yaml"
LOCK_TIMEOUT_SEC = 1800.0
PLATFORM = "x86_64-manylinux_2_28"
HUB_CLIENT, HUB_CLIENT_PYTHON = "hub-client", "3.9"  # its lock is for a build VM, the others for profiles


def load_profiles(root: Path) -> dict[str, BuildProfile]:
    """Load all profiles, by name. Raises UsageError."""
    try:
        profiles = yaml.safe_load((root / PROFILES_FILE).read_text(encoding="utf-8"))
        return {name: BuildProfile(name=name, **fields) for name, fields in profiles.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{PROFILES_FILE}: cannot be used: {reason}", remedy=f"`git checkout {PROFILES_FILE}` restores it"
        ) from error


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
    path = root / "image" / "locks" / f"{HUB_CLIENT}.txt"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="`inv image.lock` rebuilds it") from error


def make_locks(context: Context, profile: str | None, *, upgrade: bool, dry_run: bool = False) -> CommandResult | None:
    settings = load(context)
    profiles = load_profiles(settings.root)
    if profile is not None and profile not in profiles:
        raise UsageError(f"image.lock: --profile: expected one of {', '.join(profiles)}, found {profile!r}")
    names = [profile] if profile is not None else [*profiles, HUB_CLIENT]
    if dry_run:
        locks = [f"image/locks/{name}.txt" for name in names]
        return plan_result([f"write  {lock}" for lock in locks], locks=locks)
    for name in names:
        folder = settings.root / "image" / "locks"
        argv = (
            *(sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--generate-hashes"),
            *("--only-binary", ":all:"),
            *(
                ("--universal", "--python-version", HUB_CLIENT_PYTHON)
                if name == HUB_CLIENT
                else ("--python-version", profiles[name].python, "--python-platform", PLATFORM)
            ),
            *("--custom-compile-command", "inv image.lock", "--output-file", f"{name}.txt"),
            *(("--upgrade",) if upgrade else ()),
            f"{name}.in",
        )
        try:
            completed = run_program(argv, label=f"image.lock: {name}", folder=str(folder), timeout_sec=LOCK_TIMEOUT_SEC)
        except CommandTimedOut as error:
            raise RetryableError(
                f"image.lock: {name}: not done after {LOCK_TIMEOUT_SEC:.0f} s", remedy="rerun `inv image.lock`"
            ) from error
        if completed.exit_code != 0:
            last = " ".join(completed.stderr.decode(errors="replace").split()[-60:])
            raise TaskFailed(f"image.lock: {name}: {last or argv}")
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        packages = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
        print(f"image/locks/{name}.txt: {len(packages)} packages, {text.count('--hash=')} hashes")
    return None
