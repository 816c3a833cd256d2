"""Provider `generic`: any Kubernetes with any registry that conforms to the OCI distribution specification."""

from collections.abc import Mapping
from typing import ClassVar

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
    buckets: ClassVar[Mapping[str, str]] = {}
    commands: ClassVar[Mapping[str, str]] = {}
    checks = ()
    remedies: ClassVar[Mapping[str, str]] = {}
