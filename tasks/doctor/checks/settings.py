"""The settings: which files count, secrets, what contradicts itself, what makes steps slow."""

import os
from collections.abc import Iterator

from remote.cluster.quantities import amount
from remote.image.references import InvalidReference, reference
from tasks.clients import secrets
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine
from tasks.settings import sources
from tasks.settings.load import ENVIRONMENT, Settings

CHECKS = Checks("settings")

TWO_REPOSITORIES = Fault(
    what="pods run an image of {runs} (cluster.image), and `inv push` pushes to {pushes} (registry.image)",
    remedy="set cluster.image to null, so that pods run what was pushed last",
    mark=CheckStatus.CAREFUL,
)
NOT_IN_IMAGE = Fault(
    what="model.path is {path}, and image.models has {models}: the image will not have that model",
    remedy="add it to image.models, then `inv model.fetch build push deploy`; or correct model.path",
)
TINY = Fault(
    what="fleet.kind is pods and bench.profile tiny: sizes for a laptop, whose numbers say nothing about a GPU",
    remedy="set bench.profile to gpu",
    mark=CheckStatus.CAREFUL,
)
OVERLAY = Fault(
    what="fleet.kind is pods, and the overlay {overlay} deploys no workers",
    remedy="set cluster.overlay to pods, or to preemptible",
)
THREADS_OF_PODS = Fault(
    what="a trial starts {threads} threads (fleet.pods.threads) on {cpu} cores (cluster.cpu): they wait for each other",
    remedy="set fleet.pods.threads to {cpu}",
    mark=CheckStatus.CAREFUL,
)
THREADS_HERE = Fault(
    what="{threads} threads of {size} workers on {cores} cores: they wait for each other, steps take many times longer",
    remedy="lower fleet.size or fleet.local.threads",
    mark=CheckStatus.CAREFUL,
)
SLOW_RECIPE = Fault(
    what="train.recipe is {recipe}: the published loop, less than half as fast as fast",
    remedy="set train.recipe to fast",
    mark=CheckStatus.CAREFUL,
)
SHARED_NODE = Fault(
    what="cluster.one_per_node is false: pods on one node share its cores, memory bandwidth, disk and network",
    remedy="set cluster.one_per_node to true where numbers are to be compared",
    mark=CheckStatus.CAREFUL,
)


@CHECKS.asks("files", "Which files and variables count?")
def files(facts: CheckContext) -> CheckResult:
    found = sources.read(facts.config, ENVIRONMENT)
    read = [sources.shown(one.path) for one in found.weakest_first if one.path is not None and one.data]
    variables = sum(name in os.environ for name in ENVIRONMENT)
    more = f", and {variables} variable{'' if variables == 1 else 's'} INVOKE_*" if variables else ""
    return fine(f"read: {', '.join(read) or 'none'}{more}; every key is known, every value fits")


@CHECKS.asks("secrets", "Are the files with passwords and tokens there, and closed to others?")
def secret_files(facts: CheckContext) -> CheckResult:
    registry, hub, image = facts.settings.registry, facts.settings.hub, facts.settings.image
    given = {
        "registry.password_file": registry.password_file,
        "hub.token_file": hub.token_file,
        "image.sign_key": image.sign_key,
        "image.sign_password_file": image.sign_password_file,
    }
    named = {name: path for name, path in given.items() if path}
    if not named:
        raise Skipped("no setting names a file with a secret; passwords are asked for")
    for name, path in named.items():
        secrets.read(facts.settings, name, path, in_header=name == "hub.token_file")
    secrets.check_hub(facts.settings)
    return fine(f"{' and '.join(named)}: there, and closed to others")


@CHECKS.asks("contradictions", "Do two settings contradict each other?", TWO_REPOSITORIES, NOT_IN_IMAGE, TINY, OVERLAY)
def contradictions(facts: CheckContext) -> CheckResult | list[CheckResult]:
    return [*contradicting(facts.settings)] or fine("no two settings contradict each other")


def contradicting(settings: Settings) -> Iterator[CheckResult]:
    cluster, pushed = settings.cluster, settings.registry.image
    if cluster.image is not None and pushed is not None:
        try:
            pushes = reference(pushed, settings.image.profile).repository
        except InvalidReference:
            pushes = pushed  # the subject registry says what is wrong with it
        runs = cluster.image.partition("@")[0]
        if runs != pushes:
            yield TWO_REPOSITORIES.seen(runs=runs, pushes=pushes)
    if settings.fleet.kind != "pods":
        return
    names = {name.replace("/", "--") for name in settings.image.models}
    folder, _, name = settings.model.path.rstrip("/").rpartition("/")
    if folder == "/models" and names and name not in names:
        yield NOT_IN_IMAGE.seen(path=settings.model.path, models=", ".join(settings.image.models))
    if settings.bench.profile == "tiny":
        yield TINY.seen()
    if cluster.overlay not in ("pods", "preemptible"):
        yield OVERLAY.seen(overlay=cluster.overlay)


@CHECKS.asks(
    "slow",
    "Does a setting make steps slower than they need be?",
    *(THREADS_OF_PODS, THREADS_HERE, SHARED_NODE, SLOW_RECIPE),
)
def slow(facts: CheckContext) -> CheckResult | list[CheckResult]:
    return [*slowing(facts.settings, os.cpu_count() or 1)] or fine("nothing here makes steps slower than they need be")


def slowing(settings: Settings, cores: int) -> Iterator[CheckResult]:
    fleet, cluster = settings.fleet, settings.cluster
    if fleet.kind == "pods" and fleet.pods.threads > amount(cluster.cpu):
        yield THREADS_OF_PODS.seen(threads=fleet.pods.threads, cpu=cluster.cpu)
    if fleet.kind == "pods" and not cluster.one_per_node:
        yield SHARED_NODE.seen()
    if fleet.kind == "local" and fleet.size > 1 and fleet.size * fleet.local.threads > cores:
        yield THREADS_HERE.seen(size=fleet.size, threads=fleet.size * fleet.local.threads, cores=cores)
    if settings.train.recipe == "reference":
        yield SLOW_RECIPE.seen(recipe=settings.train.recipe)
