"""Registry of the settings: its names, and queries that the build VM runs."""

import base64
from collections.abc import Mapping
from typing import Any

from remote.hosts.base import Host
from remote.hosts.command import Secret
from remote.image import vm_jobs
from remote.image.references import InvalidReference, Reference, parse_image_name
from remote.providers import GENERIC, registry_provider
from tasks.clients.provider import known_provider
from tasks.clients.secrets import check_registry_user
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings

QUERY_TIMEOUT_SEC = 900.0  # enough for documents of some megabytes over a slow line


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


def query(
    settings: Settings,
    host: Host,
    where: Reference,
    login: tuple[str, Secret],
    parameters: Mapping[str, Any],
    timeout_sec: float = QUERY_TIMEOUT_SEC,
) -> Mapping[str, Any]:
    """Query the registry by `remote.agent.build_vm.registry_query` on the VM.

    Raises HostError, and JobFailed for an error of the registry.
    """
    user, password = login
    question = {
        "host": where.host,
        "path": where.path,
        "tag": where.tag,
        "login": base64.b64encode(f"{user}:{password.reveal()}".encode()).decode(),
        "token_hosts": list(settings.registry.token_hosts),
        **parameters,
    }
    return vm_jobs.query_registry(vm_jobs.create_agent(host), question, timeout_sec=timeout_sec)
