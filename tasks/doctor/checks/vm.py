"""The build VM: connection, engine, share, room for the image, models."""

import time

from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from remote.image.workdir import home_below
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, fine, from_error
from tasks.image import build_profiles
from tasks.image.build import due

CHECKS = Checks("vm")

BUSY = Fault(
    what="{folder} runs there, of {who}: builds, pushes and fetches wait for it",
    remedy="wait, or `inv {verb} --cancel`",
    mark=CheckStatus.CAREFUL,
)
NO_MODELS = Fault(
    what="image.models is empty: the image will have no weights, and pods have no network",
    remedy="set image.models, e.g. [mistralai/Mistral-7B-Instruct-v0.3], then `inv model.fetch`",
    mark=CheckStatus.CAREFUL,
)


@CHECKS.asks("connection", "Does the build VM let us in, and can it build for the GPU nodes?", others=examples.vm)
def connection(facts: CheckContext) -> CheckResult | list[CheckResult]:
    began = time.monotonic()
    found = facts.machine.first()
    took = time.monotonic() - began
    if problems := found.problems():
        return [from_error(problem) for problem in problems]
    version = ".".join(map(str, found.python))
    return fine(
        f"{facts.vm.get().name}: {found.user}, in {took:.1f} s; {found.system}, Python {version}, {found.cores} cores, "
        f"{found.memory_bytes / 1e9:.0f} GB"
    )


@CHECKS.asks("engine", "Does the engine answer this user, and has it BuildKit?", others=examples.engine)
def engine_there(facts: CheckContext) -> CheckResult:
    found = facts.engine.first()
    return fine(f"answers, with BuildKit; its data in {found.data_root} ({found.storage_driver})")


@CHECKS.asks("slot", "Does another job hold the VM's one slot?", BUSY)
def slot(facts: CheckContext) -> CheckResult:
    facts.machine.get()
    job = facts.on_vm(lambda host: vm_jobs.running(vm_jobs.agent_on(host)))
    if job is None:
        return fine("nothing runs there")
    who = vm_jobs.starter(job)
    return BUSY.seen(folder=job.folder, who=who or "somebody", verb=vm_jobs.verb_of(job))


@CHECKS.asks("share", "Is build.tmpdir there, and our folder in it closed to others?")
def share(facts: CheckContext) -> CheckResult:
    facts.machine.get()
    tmp = facts.on_vm(facts.tmpdir)
    (place,) = facts.on_vm(lambda host: engine.disk_info(host, (tmp,)).places)
    return fine(
        f"{tmp}: {place.free_bytes / 1e9:.1f} GB free on {place.kind}; our folder there is ours, or not there yet"
    )


@CHECKS.asks(
    "models",
    "Are the models of image.models on the VM, every file with its manifest's size?",
    NO_MODELS,
    others=examples.models,
)
def models(facts: CheckContext) -> CheckResult:
    facts.machine.get()
    if not facts.settings.image.models:
        return NO_MODELS.seen()
    tmp = facts.on_vm(facts.tmpdir)
    names = [model.replace("/", "--") for model in facts.settings.image.models]
    folders = [(name, f"{home_below(tmp)}/models/{name}") for name in names]
    found = facts.on_vm(lambda host: buildplan.model_folders(engine.disk_info(host, (), folders)))
    sizes = ", ".join(f"{one.name} {one.size / 1e9:.1f} GB" for one in found)
    return fine(f"{sizes}: every file has its manifest's size")


@CHECKS.asks(
    "room", "Do the disks of build.tmpdir and of the engine's data-root fit the next build?", others=examples.room
)
def room(facts: CheckContext) -> CheckResult:
    facts.engine.get()
    plan = facts.on_vm(lambda host: due(facts.settings, host, facts.tmpdir(host)))
    if plan is None:
        return fine(f"{build_profiles.image_name(facts.settings)} is there and up to date")
    needs = sum(need.need_bytes for need in plan.needs)
    return fine(f"the next build needs {needs / 1e9:.1f} GB, for which there is room")
