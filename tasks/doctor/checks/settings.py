"""Checks of the settings: secrets, contradictions, slow settings."""

import os
from collections.abc import Iterator

from remote.cluster.quantities import parse_quantity
from remote.image.references import InvalidReference, parse_image_name
from tasks.clients import secrets
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed

CHECKS = Checks("settings")

TWO_REPOSITORIES = Fault(
    "pods run an image of {runs} (cluster.image), but `inv push` pushes to {pushes} (registry.image)",
    "set cluster.image to null, so that pods run the last pushed image",
    status=CheckStatus.WARN,
)
NOT_IN_IMAGE = Fault(
    "model.path is {path}, but image.models has {models}: the image will not have that model",
    "add it to image.models, then `inv model.fetch build push deploy`; or correct model.path",
)
TINY = Fault(
    "fleet.kind is pods and bench.profile tiny: sizes for a laptop, without meaning for a GPU",
    "set bench.profile to gpu",
    status=CheckStatus.WARN,
)
OVERLAY = Fault("fleet.kind is pods, but the overlay {overlay} deploys no workers", "set cluster.overlay to pods")
THREADS_OF_PODS = Fault(
    "a trial starts {threads} threads (fleet.pods.threads) on {cpu} cores (cluster.cpu), which slows its steps",
    "set fleet.pods.threads to {cores}",
    status=CheckStatus.WARN,
)
THREADS_HERE = Fault(
    "{threads} threads of {size} workers on {cores} cores: steps take many times longer",
    "lower fleet.size or fleet.local.threads",
    status=CheckStatus.WARN,
)
SLOW_RECIPE = Fault(
    "train.recipe is {recipe}, the published loop: less than half the speed of recipe fast",
    "set train.recipe to fast",
    status=CheckStatus.WARN,
)
RECOMPUTES = Fault(
    "train.gradient_checkpointing is true: activations are recomputed also where memory is free",
    "set train.gradient_checkpointing to auto",
    status=CheckStatus.WARN,
)
SHARED_NODE = Fault(
    "cluster.one_per_node is false: pods on one node share its cores, memory bandwidth, disk and network",
    "set cluster.one_per_node to true if you compare numbers",
    status=CheckStatus.WARN,
)


@CHECKS.register("secrets", "Do the files with passwords and tokens exist, and are they private?")
def secret_files(context: CheckContext) -> CheckResult:
    registry, hub = context.settings.registry, context.settings.hub
    configured = {
        "registry.password_file": registry.password_file,
        "hub.token_file": hub.token_file,
    }
    named = {name: path for name, path in configured.items() if path}
    if not named:
        raise Skipped("no setting names a file with a secret; the tasks prompt for passwords")
    for name, path in named.items():
        secrets.read_secret(context.settings, name, path, in_header=name == "hub.token_file")
    secrets.check_hub_endpoint(context.settings)
    return passed(f"{' and '.join(named)}: readable, and private")


@CHECKS.register(
    "contradictions",
    "Do two settings contradict each other?",
    *(TWO_REPOSITORIES, NOT_IN_IMAGE, TINY, OVERLAY),
    fine="no two settings contradict each other",
)
def contradictions(context: CheckContext) -> Iterator[CheckResult]:
    settings = context.settings
    cluster, pushed = settings.cluster, settings.registry.image
    if cluster.image is not None and pushed is not None:
        try:
            pushes = parse_image_name(pushed, settings.image.profile).repository
        except InvalidReference:
            pushes = pushed  # the check "registry name" reports the invalid reference
        runs = cluster.image.partition("@")[0]
        if runs != pushes:
            yield TWO_REPOSITORIES.result(runs=runs, pushes=pushes)
    if not settings.connector.is_cluster:
        return
    names = {name.replace("/", "--") for name in settings.image.models}
    folder, _, name = settings.model.path.rstrip("/").rpartition("/")
    if folder == "/models" and names and name not in names:
        yield NOT_IN_IMAGE.result(path=settings.model.path, models=", ".join(settings.image.models))
    if settings.bench.profile == "tiny":
        yield TINY.result()
    if cluster.overlay != "pods":
        yield OVERLAY.result(overlay=cluster.overlay)


@CHECKS.register(
    "slow",
    "Does a setting make steps slower than necessary?",
    *(THREADS_OF_PODS, THREADS_HERE, SHARED_NODE, SLOW_RECIPE),
    fine="no setting makes steps slower than necessary",
)
def slow(context: CheckContext) -> Iterator[CheckResult]:
    settings, here = context.settings, os.cpu_count() or 1
    fleet, cluster = settings.fleet, settings.cluster
    cores, threads = max(1, int(parse_quantity(cluster.cpu))), fleet.size * fleet.local.threads
    if settings.connector.is_cluster and fleet.pods.threads > cores:
        yield THREADS_OF_PODS.result(threads=fleet.pods.threads, cpu=cluster.cpu, cores=cores)
    if settings.connector.is_cluster and not cluster.one_per_node:
        yield SHARED_NODE.result()
    if settings.connector.is_local and fleet.size > 1 and threads > here:
        yield THREADS_HERE.result(size=fleet.size, threads=threads, cores=here)
    if settings.train.recipe == "reference":
        yield SLOW_RECIPE.result(recipe=settings.train.recipe)
    elif settings.train.gradient_checkpointing:
        yield RECOMPUTES.result()
