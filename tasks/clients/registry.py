"""Registry of the settings: its names, queries that the build VM runs, and the image that pods run, by its digest."""

import contextlib
from collections.abc import Iterator
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.checksummed import ResultError, refuse_other_version
from remote.cluster.manifests import Image
from remote.image.references import InvalidReference, Reference, parse_image_name
from remote.image.vm_jobs import JobFailed
from remote.providers import GENERIC, registry_provider
from tasks.clients.secrets import check_registry_user
from tasks.clients.target_cluster import known_provider
from tasks.errors import UsageError, translate_errors
from tasks.settings.layers import Settings

_MAX_RECORD_BYTES = 1 << 20


def configured_image(settings: Settings) -> tuple[Reference, str]:
    """Return registry.image and registry.user. Raises UsageError for missing or invalid values."""
    if settings.registry.image is None:
        form = (known_provider(settings) or GENERIC).image_form
        raise UsageError("registry.image: not set", remedy=f"set {form} in invoke.yaml or ~/.invoke.yaml")
    where = parse_reference("registry.image", settings.registry.image, settings.image.profile)
    return where, configured_user(settings, where.repository)


def parse_reference(setting: str, text: str, default_tag: str) -> Reference:
    """Parse the image name of a setting or flag. Raises UsageError."""
    with translate_errors(UsageError, InvalidReference, prefix=f"{setting}: "):
        return parse_image_name(text, default_tag)


def configured_user(settings: Settings, repository: str) -> str:
    """Return registry.user. Raises UsageError if it is not set or the repository's registry would reject it."""
    user = settings.registry.user
    if user is None:
        forms = registry_provider(repository.partition("/")[0]).user_forms
        raise UsageError("registry.user: not set", remedy=f"set it to {forms or 'the user name at that registry'}")
    check_registry_user(user, repository)
    return user


@contextlib.contextmanager
def registry_refusals(target: Reference) -> Iterator[None]:
    """Add what to do with the target's provider to the registry's refusal of a login. Raises UsageError."""
    try:
        yield
    except JobFailed as failure:
        provider = registry_provider(target.host)
        command = provider.create_repository_command
        create = "" if command is None else f"if {target.repository} does not exist, `{command}` creates it"
        remedies = {
            "unauthorized": provider.texts["registry-login"],
            "forbidden": create and f"{provider.texts['registry-push']}; {create}",
            "absent": create,
        }
        if remedy := remedies.get(failure.kind):
            raise UsageError.from_error(failure, remedy=remedy) from failure
        raise


def read_push_record(settings: Settings) -> dict[str, Any]:
    """Parse the record of the last `inv push`. Raises OSError and ValueError."""
    document = schema.parse_object(read_regular(settings.image_file, max_bytes=_MAX_RECORD_BYTES))
    refuse_other_version(str(settings.image_file), document.get("schema_version"), document.get("version"))
    return document


def resolve_image(settings: Settings) -> Image:
    """Return the image to run: cluster.image, else the last pushed one. Raises UsageError, also without a digest."""
    if settings.cluster.image is not None:
        try:
            return Image.parse(settings.cluster.image)
        except ValueError as error:
            raise UsageError(
                f"cluster.image: {error}, and a tag can move under running pods",
                remedy="write HOST/REPOSITORY@sha256:..., as `inv push` prints it",
            ) from error
    path = settings.image_file
    try:
        pushed = read_push_record(settings)
        sizes: list[Any] = [pushed.get(key) for key in ("size_bytes", "compressed_bytes")]
        size = sum(sizes) if all(type(size) is int and 0 <= size < 1 << 63 for size in sizes) else None
        return Image.parse(f"{pushed['repository']}@{pushed['digest']}", size)
    except FileNotFoundError as error:
        remedy = "`inv push` writes it, or set cluster.image to HOST/REPOSITORY@sha256:..."
        raise UsageError(f"{path}: no such file", remedy=remedy) from error
    except ResultError as error:
        raise UsageError.from_error(error, remedy="`inv push` rewrites it") from error
    except (LookupError, OSError, ValueError) as error:
        raise UsageError(f"{path}: not a record of `inv push`: {error}", remedy="`inv push` rewrites it") from error
