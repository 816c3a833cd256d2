"""Checks of the build VM: connection, engine, share, models, room for the image; and from there, of the registry."""

import time

from bench.records.units import format_gb
from remote.hosts.host_protocol import Host
from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from remote.image.engine import EngineImage, FolderInfo
from remote.image.plan import BuildPlan
from remote.image.references import Reference
from tasks.clients import registry, secrets
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, from_error, passed
from tasks.image import build_profiles
from tasks.image.build import check_space, image_spec, plan_build

CHECKS, REGISTRY_CHECKS = Checks("vm"), Checks("registry")

NO_MODELS = Fault(
    "image.models is empty: the image will have no weights, and pods have no network",
    "set image.models, e.g. [mistralai/Mistral-7B-Instruct-v0.3], then `inv model.fetch`",
    status=CheckStatus.WARN,
)
FULL = Fault(
    "{folder}: {free} free on {kind}: builds, pushes and their logs need {need}",
    "free space there on the VM (`inv vm.prune` removes the engine's old cache), or set build.tmpdir to another disk",
)


@CHECKS.register("connection", "Does the build VM accept the login, and can it build for the GPU nodes?")
def connection(context: CheckContext) -> CheckResult | list[CheckResult]:
    started = time.monotonic()
    vm = context.machine.get_or_raise()
    elapsed_sec = time.monotonic() - started
    if problems := vm.problems():
        return [from_error(problem) for problem in problems]
    version = ".".join(map(str, vm.python))
    return passed(f"{context.vm.get_or_skip().name}: Python {version} on {vm.machine}, in {elapsed_sec:.1f} s")


@CHECKS.register("engine", "Does the engine answer this user, and does it have BuildKit?")
def engine_there(context: CheckContext) -> CheckResult:
    engine_facts = context.engine.get_or_raise()
    return passed(f"answers, with BuildKit; data in {engine_facts.data_root} ({engine_facts.storage_driver})")


@CHECKS.register(
    "share", "Does build.tmpdir exist, is our folder in it private, and is there space there, at home and in /?", FULL
)
def share(context: CheckContext) -> CheckResult | list[CheckResult]:
    context.machine.get_or_skip()
    folders = context.on_vm(lambda host: _folders(context, host))
    folder_info = folders[0]
    if full := {folder.device: folder for folder in folders if folder.free_bytes < buildplan.HEADROOM_BYTES}:
        need = format_gb(buildplan.HEADROOM_BYTES)
        return [
            FULL.result(folder=folder.path, free=format_gb(folder.free_bytes), kind=folder.kind, need=need)
            for folder in full.values()
        ]
    free = f"{format_gb(folder_info.free_bytes)} free on {folder_info.kind}"
    return passed(f"{folder_info.path}: {free}; our folder in it is private, or does not exist yet")


def _folders(context: CheckContext, host: Host) -> tuple[FolderInfo, ...]:
    """Return the folder for large files, that of the jobs, and the root. Raises HostError for an unusable one."""
    tmp = context.tmpdir(host)
    folders = engine.disk_info(host, (tmp, host.workdir, "/")).folders
    if context.settings.build.tmpdir is not None:
        buildplan.check_tmpdir(folders[0])
    return folders


@CHECKS.register(
    "room", "Are the models whole, and do the disks of build.tmpdir and data-root fit the next build?", NO_MODELS
)
def room(context: CheckContext) -> list[CheckResult]:
    context.engine.get_or_skip()
    plan = context.on_vm(lambda host: _plan_next_build(context, host))
    results = [] if context.settings.image.models else [NO_MODELS.result()]
    if isinstance(plan, EngineImage):
        return [*results, passed(f"{build_profiles.image_name(context.settings)} exists and is up to date")]
    needs = sum(need.need_bytes for need in plan.needs)
    return [*results, passed(f"the next build needs {format_gb(needs)}, and there is room")]


def _plan_next_build(context: CheckContext, host: Host) -> BuildPlan | EngineImage:
    spec = image_spec(context.settings, context.tmpdir(host))
    plan = plan_build(spec, host)
    if isinstance(plan, BuildPlan):
        check_space(context.settings, host, plan)
    return plan


NOT_PUSHED = Fault(
    "the login works and may push, but {reference} does not exist yet", "`inv push` creates it", status=CheckStatus.WARN
)


@REGISTRY_CHECKS.register("name", "Are registry.image and registry.user valid names for that registry?")
def name(context: CheckContext) -> CheckResult:
    image = _configured_image(context)
    return passed(f"{image} as {registry.configured_user(context.settings, image.repository)}")


@REGISTRY_CHECKS.register(
    "login",
    "Does the registry accept the login, and may it push there? (An upload is started and cancelled.)",
    NOT_PUSHED,
)
def login(context: CheckContext) -> CheckResult:
    image, section = _configured_image(context), context.settings.registry
    if section.user is None:
        raise Skipped("see registry name")
    if section.password_file is None:
        raise Skipped("registry.password_file is null: `inv push` asks for the password")
    password = secrets.read_secret(context.settings, "registry.password_file", section.password_file)
    context.machine.get_or_skip()
    question = {
        "host": image.host,
        "path": image.path,
        "tag": image.tag,
        "login": secrets.encoded_login(section.user, password).reveal(),
        "token_hosts": list(section.token_hosts),
    }
    with registry.registry_refusals(image):
        answer = context.on_vm(lambda host: vm_jobs.query_registry(vm_jobs.create_agent(host), question))
    if answer["digest"] is None:
        return NOT_PUSHED.result(reference=image)
    return passed(f"the login works and may push; {image} is {answer['digest'][:19]}")


def _configured_image(context: CheckContext) -> Reference:
    name = context.settings.registry.image
    if name is None:
        raise Skipped("registry.image is null: no image is pushed")
    return registry.parse_reference("registry.image", name, context.settings.image.profile)
