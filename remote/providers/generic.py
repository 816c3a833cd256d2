"""Provider `generic`: any Kubernetes with any registry that conforms to the OCI distribution specification."""

from collections.abc import Mapping, Sequence
from typing import Any

from remote.providers.provider import Provider


class Generic(Provider):
    name = "generic"
    image_form = "HOST/REPOSITORY:TAG"
    user_forms = None
    password_name = "password"  # noqa: S105 - a word for messages
    create_repository_command = None
    pull_secret = "registry-login"  # noqa: S105 - the name of a Kubernetes object
    instance_type = None
    preemptible_label = None
    volume_form = "SERVER:/EXPORT (NFS)"
    price_table = None
    commands: Mapping[str, str] = {}
    checks = ()
    remedies: Mapping[str, str] = {}

    def owns_registry(self, host: str) -> bool:
        return False

    def owns_node(self, node: Mapping[str, Any]) -> bool:
        return False

    def owns_volume(self, handle: str) -> bool:
        return False

    def image_problem(self, host: str, parts: Sequence[str]) -> str | None:
        return None

    def user_problem(self, user: str, path: str) -> str | None:
        return None
