"""image/profiles.yaml: what an image can be built as; `inv image.lock`: the locks of its packages and its base."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import yaml
from invoke.context import Context

from bench.records.atomic_files import write_atomic
from remote.image.plan import BuildProfile
from remote.image.references import InvalidReference, upstream
from remote.image.vm_agent.job import Failed
from remote.image.vm_agent.registry.api import Registry
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError, file_errors
from tasks.settings.load import Settings, load

PROFILES_FILE = "image/profiles.yaml"
LOCK_SEC = 1800.0
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
PLATFORM = "x86_64-manylinux_2_28"


def known(root: Path) -> dict[str, BuildProfile]:
    """The profiles of the project, by name. Raises UsageError."""
    try:
        profiles = yaml.safe_load((root / PROFILES_FILE).read_text(encoding="utf-8"))
        return {name: BuildProfile(name=name, **fields) for name, fields in profiles.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(
            f"{PROFILES_FILE}: cannot be used: {words}; `git checkout {PROFILES_FILE}` brings it back"
        ) from None


def read(settings: Settings) -> BuildProfile:
    """The profile of the settings, with their base and Python where set. Raises UsageError."""
    profiles, name = known(settings.root), settings.image.profile
    if name not in profiles:
        raise UsageError(f"image.profile: expected one of {', '.join(profiles)}, found {name!r}; see {PROFILES_FILE}")
    profile = profiles[name]
    base = settings.image.base or pinned(settings.root, profile)
    return dataclasses.replace(profile, base=base, python=settings.image.python or profile.python)


def pinned(root: Path, profile: BuildProfile) -> str:
    """The profile's base image with the digest that `inv image.lock` recorded; as the profile says where none is."""
    try:
        recorded = _base_file(root, profile.name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return profile.base
    name, _, digest = recorded.partition("@")
    return recorded if name == profile.base and DIGEST.match(digest) else profile.base


def _base_file(root: Path, name: str) -> Path:
    return root / "image" / "locks" / f"{name}.base"


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
            raise RetryableError(f"image.lock: {name}: not done after {LOCK_SEC:.0f} s; `inv image.lock`") from None
        if ended.returncode != 0:
            raise TaskFailed(f"image.lock: {name}: {' '.join(ended.stderr.split()[-60:]) or argv}")
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        packages = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
        print(f"image/locks/{name}.txt: {len(packages)} packages, {text.count('--hash=')} hashes")
    for name in [profile] if profile is not None else there:
        _pin_base(settings, there[name], upgrade=upgrade)


def _pin_base(settings: Settings, profile: BuildProfile, *, upgrade: bool) -> None:
    """Record the digest that the profile's base has in its registry now. Raises a task's errors; the locks are made."""
    known = pinned(settings.root, profile)
    if "@" in profile.base or ("@" in known and not upgrade):
        print(f"{profile.name}: base {known}")
        return
    again = f"`inv image.lock --profile {profile.name}`"
    try:
        where = upstream(profile.base)
        there = Registry(where.host, where.path, None).manifest(where.tag)
    except InvalidReference as error:
        raise UsageError(f"{PROFILES_FILE}: {profile.name}: base: {error}") from None
    except Failed as failed:
        kind = (
            RetryableError
            if failed.kind == "transient"
            else ConfirmationRequired
            if failed.kind == "refused"
            else UsageError
        )
        raise kind(f"base {profile.base} is not pinned ({failed}); the packages are locked; {again}") from None
    if there is None:
        raise UsageError(f"{PROFILES_FILE}: {profile.name}: base: {where.host} has no {where.path}:{where.tag}")
    path = _base_file(settings.root, profile.name)
    with file_errors(path, f"; make it writable, then {again}"):
        write_atomic(path, f"{profile.base}@{there[0]}\n".encode())
    print(f"{path.relative_to(settings.root)}: {profile.base}@{there[0]}")
