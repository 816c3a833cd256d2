"""The registry of the settings, and questions about it that the build VM asks."""

import base64
from collections.abc import Mapping
from typing import Any

from remote.hosts.command import Secret
from remote.hosts.host import Host
from remote.image import vm_jobs
from remote.image.references import USER_FORMS, InvalidReference, Reference, reference
from tasks.clients.secrets import check_registry_user
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings

ASK_SEC = 900.0  # documents of some megabytes, over a slow line


def address(settings: Settings) -> tuple[Reference, str]:
    """registry.image and registry.user. Raises UsageError for what cannot be."""
    if settings.registry.image is None:
        raise UsageError(
            "registry.image: not set; REGION-KEY.ocir.io/NAMESPACE/REPOSITORY:TAG, in invoke.yaml or ~/.invoke.yaml"
        )
    where = named("registry.image", settings.registry.image, settings.image.profile)
    return where, user_of(settings, where.repository)


def named(setting: str, text: str, default_tag: str) -> Reference:
    """An image's name that a setting or flag gives. Raises UsageError."""
    with translate_errors(UsageError, InvalidReference, before=f"{setting}: "):
        return reference(text, default_tag)


def user_of(settings: Settings, repository: str) -> str:
    """registry.user. Raises UsageError where it is not set, or would be refused by the repository's registry."""
    user = settings.registry.user
    if user is None:
        raise UsageError(f"registry.user: not set; for OCIR {USER_FORMS}")
    check_registry_user(user, repository)
    return user


def ask(
    settings: Settings,
    host: Host,
    where: Reference,
    login: tuple[str, Secret],
    what: Mapping[str, Any],
    timeout_sec: float = ASK_SEC,
) -> Mapping[str, Any]:
    """The answer of `remote.image.vm_agent.registry.main`, on the VM. Raises HostError; JobFailed is the registry's."""
    user, password = login
    question = {
        "host": where.host,
        "path": where.path,
        "tag": where.tag,
        "login": base64.b64encode(f"{user}:{password.reveal()}".encode()).decode(),
        "token_hosts": list(settings.registry.token_hosts),
        **what,
    }
    return vm_jobs.ask(vm_jobs.agent_on(host), question, timeout_sec=timeout_sec)
