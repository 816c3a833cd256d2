"""`inv deploy`: observe, plan, act, observe again. A deployment that is there and unchanged is only read."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from invoke.context import Context

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import Object
from remote.cluster.manifests import JOB, Image, Values, render
from remote.cluster.plan import ClusterPlan, Verb, plan
from remote.cluster.pull_secret import pull_secret
from remote.hosts.command import Secret
from tasks.cli.lock import acquire_lock
from tasks.clients.cluster import cluster_of, errors
from tasks.clients.image_ref import image_of
from tasks.clients.secrets import check_registry_user, registry_password
from tasks.cluster.checks import (
    check_controller,
    check_nodes,
    check_rights,
    check_storage,
    print_refusal,
    refuse_losing_results,
    write_down,
)
from tasks.cluster.wait import state_of, wait
from tasks.errors import UsageError
from tasks.settings.load import Settings, load

MANIFESTS = "manifests"
DELETE_SEC = 180.0


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """The flags of `inv deploy`."""

    dry_run: bool
    yes: bool
    discard_results: bool
    plain: bool
    renew_secret: bool = False
    replace: bool = False
    partial: bool = False
    take_over: bool = False


@dataclass(frozen=True, kw_only=True)
class DeployHooks:
    """What a task brings beside the settings.

    `values` go to the manifests, where `components` read them; `server` is the image of a server. `begin` is called
    once nothing is refused any more, and `before_pods` when everything is there but the pods. `look` is told of the
    pods while they are waited for; without `waits` they are not. `again` is the command that goes on.
    """

    values: Mapping[str, str | int | list[str]] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    server: Image | None = None
    begin: Callable[[], object] = lambda: None
    before_pods: Callable[[Cluster], object] = lambda _cluster: None
    look: Callable[[PodFleet], object] = lambda _state: None
    waits: bool = True
    again: str = "inv deploy"


def deploy_fleet(context: Context, choices: DeployOptions) -> None:
    settings = load(context)
    if settings.cluster.overlay.startswith(JOB):
        raise UsageError(f"cluster.overlay: {settings.cluster.overlay} trains by itself: type `inv train --job`")
    apply(settings, choices)


def apply(settings: Settings, choices: DeployOptions, more: DeployHooks | None = None) -> None:
    """Bring the cluster to the settings, with `more`."""
    more = more or DeployHooks()
    image = image_of(settings)
    values = values_of(settings, image)
    components = (*values.components, *more.components)
    values = replace(values, copied={**values.copied, **more.values}, components=components, server=more.server)
    with errors():
        desired = render(values, settings.root / MANIFESTS)
    with cluster_of(settings, changes=not choices.dry_run, yes=choices.yes) as cluster:
        live = cluster.live()
        makes_secret = _makes_secret(settings, cluster, image, renew=choices.renew_secret)
        planned = plan(desired, live, makes_secret=makes_secret, replace_ended=choices.replace)
        _print_plan(planned, image, settings)
        jobs = [one for one in desired if one["kind"] == "Job"]
        await_pods = partial(wait, settings, cluster, jobs, plain=choices.plain, look=more.look, again=more.again)
        if planned.is_empty:
            state = state_of(cluster, jobs)
            if state.is_up or choices.dry_run or not jobs:
                print(f"nothing to do: {state.up} of {len(state.rows)} pods are up")
                return
            await_pods()
            return
        check_nodes(settings, cluster, image, planned, partial=choices.partial or choices.dry_run)
        check_controller(settings, cluster, planned)
        check_storage(cluster, planned)
        check_rights(cluster, planned)
        if choices.dry_run:
            print_refusal(settings, cluster, planned, may_lose=choices.discard_results)
            _print_diff(cluster, planned, take_over=choices.take_over)
            return
        # Not locked where no pod ends: a run whose Job was deleted waits for what this brings back.
        with acquire_lock(settings.results_folder, "deploy") if planned.ends_pods else contextlib.nullcontext():
            lost = refuse_losing_results(settings, cluster, planned, may_lose=choices.discard_results)
            user = settings.registry.user or ""
            secret = registry_password(settings, user, image.registry, "inv deploy") if makes_secret else None
            more.begin()
            _act(settings, cluster, planned, image, secret, more, take_over=choices.take_over)
            write_down(settings, cluster, lost)
        if jobs and more.waits:
            old_pods = not any(action.kind == "Job" for action in planned.changes)
            await_pods(new_login=makes_secret and old_pods)


def values_of(settings: Settings, image: Image) -> Values:
    """The values of the manifests: every text and number of section cluster, and some of others."""
    cluster = settings.cluster
    given = {**dict(cluster), **dict(cluster.fss), "size": settings.fleet.size, "profile": settings.bench.profile}
    given |= {"model": settings.model.path, "data": settings.data.path}
    given |= {"gpus_per_pod": str(cluster.gpus_per_pod), "least_up": settings.fleet.size - 1}
    asked = {
        "several-per-node": not cluster.one_per_node,
        "gpu-product": cluster.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": cluster.cpu_limit is not None,
    }
    return Values(
        namespace=cluster.namespace,
        overlay=cluster.overlay,
        image=image,
        preemptible=cluster.preemptible,
        pull_secret=cluster.pull_secret,
        volume_handle=cluster.fss.volume_handle,
        copied={name: value for name, value in given.items() if isinstance(value, (str, int))},
        components=tuple(name for name, is_asked in asked.items() if is_asked),
    )


def _makes_secret(settings: Settings, cluster: Cluster, image: Image, *, renew: bool) -> bool:
    section, user = settings.cluster, settings.registry.user
    if section.pull_secret is None:
        if renew:
            raise UsageError("deploy: --renew-secret: cluster.pull_secret is null (a public image); give it a name")
        return False
    if not renew and cluster.has_secret(section.pull_secret):
        return False
    if user is None:
        raise UsageError(
            f"namespace {section.namespace} has no secret {section.pull_secret}; set registry.user and type "
            "the same with the auth token on standard input, or set cluster.pull_secret to null for a public image"
        )
    check_registry_user(user, image.repository)
    return True


def _print_plan(planned: ClusterPlan, image: Image, settings: Settings) -> None:
    print(f"image: {image.reference}")
    shown = [action for action in planned.actions if action.verb is not Verb.KEEP]
    kept = len(planned.actions) - len(shown)
    for action in shown:
        print(action)
    if planned.makes_secret:
        print(f"{'write':9}  secret/{settings.cluster.pull_secret}")
    print(f"plan: overlay {settings.cluster.overlay}: {len(planned.changes)} to change, {kept} unchanged", flush=True)


def _print_diff(cluster: Cluster, planned: ClusterPlan, *, take_over: bool) -> None:
    if any(action.kind == "Namespace" for action in planned.of(Verb.CREATE)):
        print("dry run: nothing was changed; the namespace is not there yet, so everything in it is new")
        return
    # A Job that is replaced cannot be compared by the server, which would refuse the change.
    for action in planned.of(Verb.REPLACE):
        for difference in action.differences:
            print(f"{action.title}  {difference}")
    # Nor can a binding whose Role is new: who may not grant every right is asked what that Role grants, and in a dry
    # run it is not there. The deployment itself makes the Role first.
    new_roles = {action.name for action in planned.of(Verb.CREATE) if action.kind == "Role"}
    objects = [
        action.desired
        for action in planned.of(Verb.CREATE, Verb.APPLY)
        if action.desired is not None
        and not (action.kind == "RoleBinding" and action.desired["roleRef"]["name"] in new_roles)
    ]
    if objects:
        print(cluster.diff(objects, take_over=take_over), end="")
    print("dry run: nothing was changed")


def _act(
    settings: Settings,
    cluster: Cluster,
    planned: ClusterPlan,
    image: Image,
    secret: Secret | None,
    more: DeployHooks,
    *,
    take_over: bool,
) -> None:
    """In this order nothing waits for what is not there yet: other objects, the secret, old Jobs deleted, new Jobs."""
    section = settings.cluster
    gone = [a.live for a in planned.of(Verb.DELETE, Verb.REPLACE) if a.live is not None]
    written = planned.of(Verb.CREATE, Verb.APPLY, Verb.REPLACE)
    workloads = [a.desired for a in written if a.kind in ("Job", "JobSet") and a.desired is not None]
    others = [a.desired for a in written if a.kind not in ("Job", "JobSet") and a.desired is not None]
    if others:
        cluster.apply(others, take_over=take_over)
        print(f"applied {len(others)} object{'' if len(others) == 1 else 's'}", flush=True)
    if secret is not None and section.pull_secret is not None and settings.registry.user is not None:
        made, hidden = pull_secret(
            name=section.pull_secret,
            namespace=section.namespace,
            registry=image.registry,
            user=settings.registry.user,
            password=secret,
        )
        cluster.apply([made], take_over=True, secrets=hidden)
        print(f"wrote secret/{section.pull_secret}", flush=True)
    more.before_pods(cluster)
    if gone:
        print(f"deleting {_titles(gone)}, and waiting until their pods are gone", flush=True)
        cluster.delete(gone, wait_sec=DELETE_SEC)
    if workloads:
        cluster.apply(workloads, take_over=take_over)
        print(f"started {_titles(workloads)}", flush=True)


def _titles(objects: list[Object]) -> str:
    return ", ".join(f"{object['kind'].lower()}/{object['metadata']['name']}" for object in objects)
