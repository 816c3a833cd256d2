"""The registry: its name, the login, the right to push. The build VM asks it, as it does in a push."""

from collections.abc import Mapping
from typing import Any

from remote.hosts.command import Secret
from remote.hosts.host import Host
from remote.image import vm_jobs
from remote.image.references import USER_FORMS, Reference
from tasks.clients import registry, secrets
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine

_ASK_SEC = 15.0
CHECKS = Checks("registry")

LOGIN = Fault(
    what="no login: {message}",
    remedy=f"registry.user is {USER_FORMS}, and the password an auth token, not the console's; make a new token there",
)
MAY_NOT = Fault(
    what="no right to push: {message}",
    remedy="let a policy `manage repos` in that compartment, or correct registry.image",
)
SILENT = Fault(what="no answer: {message}", remedy="see the VM's way to the registry, then the same again", passes=True)
ODD = Fault(
    what="an answer that is no registry's: {message}",
    remedy="correct registry.image, or see what answers there in the registry's place",
)
NOT_PUSHED = Fault(
    what="the login works and may push; there is no {reference} yet",
    remedy="`inv push` puts it there",
    mark=CheckStatus.CAREFUL,
)
_BY_KIND = {"unauthorized": LOGIN, "forbidden": MAY_NOT, "transient": SILENT}


@CHECKS.asks("name", "Can registry.image and registry.user be names of that registry?")
def name(facts: CheckContext) -> CheckResult:
    where = _where(facts)
    return fine(f"{where} as {registry.user_of(facts.settings, where.repository)}")


@CHECKS.asks(
    "login",
    "Does the registry take the login, and may it push there? (An upload is begun and dropped.)",
    *(LOGIN, MAY_NOT, SILENT, ODD, NOT_PUSHED),
)
def login(facts: CheckContext) -> CheckResult:
    where, section = _where(facts), facts.settings.registry
    if section.user is None:
        raise Skipped("see registry name")
    if section.password_file is None:
        raise Skipped("registry.password_file is null: `inv push` asks for the password")
    password = secrets.read(facts.settings, "registry.password_file", section.password_file)
    facts.machine.get()
    found = facts.on_vm(lambda host: _asked(facts, host, where, (str(section.user), password)))
    if isinstance(found, vm_jobs.JobFailed):
        return _BY_KIND.get(found.kind, ODD).seen(message=found.message.partition("; ")[0])
    if found["digest"] is None:
        return NOT_PUSHED.seen(reference=where)
    return fine(f"the login works and may push; {where} is {found['digest'][:19]}")


def _asked(
    facts: CheckContext, host: Host, where: Reference, login: tuple[str, Secret]
) -> Mapping[str, Any] | vm_jobs.JobFailed:
    try:
        return registry.ask(facts.settings, host, where, login, {}, _ASK_SEC)
    except vm_jobs.JobFailed as failed:  # the registry's answer, not an error of the VM
        return failed


def _where(facts: CheckContext) -> Reference:
    image = facts.settings.registry.image
    if image is None:
        raise Skipped("registry.image is null: nothing is pushed from here")
    return registry.named("registry.image", image, facts.settings.image.profile)
