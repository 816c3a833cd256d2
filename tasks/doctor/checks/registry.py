"""Checks of the registry, queried from the build VM: its name, the login, the permission to push."""

from collections.abc import Mapping
from typing import Any

from remote.hosts.base import Host
from remote.hosts.command import Secret
from remote.image import vm_jobs
from remote.image.references import Reference
from remote.providers import registry_provider
from tasks.clients import registry, secrets
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed

_QUERY_TIMEOUT_SEC = 15.0
CHECKS = Checks("registry")

LOGIN = Fault("login rejected: {message}", "{registry-login}")
FORBIDDEN = Fault("no permission to push: {message}", "{registry-push}")
NO_ANSWER = Fault(
    "no answer: {message}", "check the VM's route to the registry, then rerun `inv doctor`", is_transient=True
)
NOT_A_REGISTRY = Fault(
    "the host answered, but not as a registry: {message}", "correct registry.image, or check which server answers there"
)
NOT_PUSHED = Fault(
    "the login works and may push, but {reference} does not exist yet", "`inv push` creates it", status=CheckStatus.WARN
)
_BY_KIND = {"unauthorized": LOGIN, "forbidden": FORBIDDEN, "transient": NO_ANSWER}


@CHECKS.register("name", "Are registry.image and registry.user valid names for that registry?")
def name(context: CheckContext) -> CheckResult:
    image = _configured_image(context)
    return passed(f"{image} as {registry.configured_user(context.settings, image.repository)}")


@CHECKS.register(
    "login",
    "Does the registry accept the login, and may it push there? (An upload is started and cancelled.)",
    *(LOGIN, FORBIDDEN, NO_ANSWER, NOT_A_REGISTRY, NOT_PUSHED),
)
def login(context: CheckContext) -> CheckResult:
    image, section = _configured_image(context), context.settings.registry
    if section.user is None:
        raise Skipped("see registry name")
    if section.password_file is None:
        raise Skipped("registry.password_file is null: `inv push` asks for the password")
    password = secrets.read_secret(context.settings, "registry.password_file", section.password_file)
    context.machine.get_or_skip()
    answer = context.on_vm(lambda host: _query(context, host, image, (str(section.user), password)))
    if isinstance(answer, vm_jobs.JobFailed):
        fault = _BY_KIND.get(answer.kind, NOT_A_REGISTRY)
        return fault.result(registry_provider(image.host), message=answer.problem)
    if answer["digest"] is None:
        return NOT_PUSHED.result(reference=image)
    return passed(f"the login works and may push; {image} is {answer['digest'][:19]}")


def _query(
    context: CheckContext, host: Host, image: Reference, login: tuple[str, Secret]
) -> Mapping[str, Any] | vm_jobs.JobFailed:
    try:
        return registry.query(context.settings, host, image, login, {}, _QUERY_TIMEOUT_SEC)
    except vm_jobs.JobFailed as failed:  # an error of the registry, not of the VM
        return failed


def _configured_image(context: CheckContext) -> Reference:
    name = context.settings.registry.image
    if name is None:
        raise Skipped("registry.image is null: no image is pushed")
    return registry.parse_reference("registry.image", name, context.settings.image.profile)
