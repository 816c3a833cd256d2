"""`inv deploy`: observe, plan, apply, observe again; read only what is unchanged. `inv teardown`: delete it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from invoke.context import Context

from remote.cluster.labels import WORKLOADS, Object, is_owned
from remote.cluster.manifests import JOB_PREFIX, WORKERS_OVERLAY, Image, ManifestValues, pull_secret, render
from remote.cluster.namespace_client import KINDS, Cluster
from remote.cluster.plan import Action, ClusterPlan, Verb, comparable, describe_change, is_being_deleted, plan
from remote.cluster.settings import PodPlacement
from remote.hosts.command import Secret
from remote.hosts.pods.kubectl import Forbidden
from remote.providers import registry_provider
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import confirm
from tasks.cli.waiting import Wait
from tasks.clients.registry import resolve_image
from tasks.clients.secrets import check_registry_user, registry_password
from tasks.clients.target_cluster import MANIFESTS, manifest_values, open_cluster, place_pods
from tasks.cluster.checks import ResultsGuard, check_plan
from tasks.cluster.commands import DeployOptions
from tasks.cluster.pod_status import wait_for_pods
from tasks.errors import ConfirmationRequired, UsageError
from tasks.settings.layers import Settings, load

DELETE_TIMEOUT_SEC = 180.0


@dataclass(frozen=True, kw_only=True)
class TrainingDeployment:
    """The deployment of a training: its overlay, values for the manifests, and what to call after the last check.

    Its caller holds the lock of the results, and waits for the pods.
    """

    overlay: str
    values: Mapping[str, str | int]
    on_accepted: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class DeployRequest:
    """A deployment as settings, flags and the task ask for it; `advice` is printed once the pods are up."""

    options: DeployOptions
    training: TrainingDeployment | None
    placement: PodPlacement
    values: ManifestValues
    guard: ResultsGuard
    registry_user: str | None
    read_password: Callable[[], Secret]
    advice: str


def deploy_fleet(context: Context, options: DeployOptions) -> CommandResult | None:
    settings = load(context)
    if settings.cluster.overlay.startswith(JOB_PREFIX):
        raise UsageError(f"cluster.overlay: {settings.cluster.overlay} runs a training", remedy="type `inv train`")
    return apply(settings, options)


def apply(
    settings: Settings, options: DeployOptions, training: TrainingDeployment | None = None
) -> CommandResult | None:
    """Apply the settings to the cluster and wait for the pods. Returns the plan of a dry run."""
    image = resolve_image(settings)
    with open_cluster(settings) as cluster:
        request = read_request(settings, options, training, image, cluster)
        desired, live = render(request.values, settings.root / MANIFESTS), cluster.live_objects()
        makes_secret = _needs_secret(request, cluster)
        applied = _try_changes(cluster, comparable(desired, live))
        cluster_plan = plan(desired, live, applied, makes_secret=makes_secret, replace_ended=options.force)
        _print_plan(cluster_plan, request)
        jobs = [item["metadata"]["name"] for item in desired if item["kind"] == "Job"]
        if cluster_plan.is_empty:
            state = cluster.pod_fleet(jobs)
            if state.is_up or options.dry_run or not jobs:
                print(f"nothing to do: {state.up_count} of {len(state.rows)} pods are up")
                return CommandResult(data=_document(cluster_plan, image)) if options.dry_run else None
            _wait(request, cluster, jobs)
            return None
        check_plan(cluster, cluster_plan, request.placement, image, is_partial=options.partial or options.dry_run)
        if options.dry_run:
            refused = request.guard.print_refusal(cluster_plan)
            _print_diff(cluster, cluster_plan)
            return CommandResult(data={**_document(cluster_plan, image), "refused": refused})
        act(request, cluster, cluster_plan)
        if jobs and training is None:
            old_pods = not any(action.kind == "Job" for action in cluster_plan.changes)
            _wait(request, cluster, jobs, new_login=cluster_plan.makes_secret and old_pods)
    return None


def read_request(
    settings: Settings, options: DeployOptions, training: TrainingDeployment | None, image: Image, cluster: Cluster
) -> DeployRequest:
    """Read what settings, flags and task ask for, with the defaults of the cluster's provider. Raises UsageError."""
    user = settings.registry.user
    placement = place_pods(settings.cluster, cluster.provider, overlay=None if training is None else training.overlay)
    values = manifest_values(settings, placement, image)
    if training is not None:
        values = replace(values, settings={**values.settings, **training.values})
    runs_workers = placement.overlay == WORKERS_OVERLAY and not settings.connector.is_cluster
    return DeployRequest(
        options=options,
        training=training,
        placement=placement,
        values=values,
        guard=ResultsGuard(cluster, settings.results_folder, settings.fleet.pods, discards=options.discard_results),
        registry_user=user,
        read_password=partial(registry_password, settings, user or "", image.registry, "inv deploy"),
        advice="set fleet.kind to pods to run `inv bench` on them" if runs_workers else "",
    )


def act(request: DeployRequest, cluster: Cluster, cluster_plan: ClusterPlan) -> None:
    """Make the changes of the plan. Raises a task's errors."""
    # Lock only if pods end: a run whose Job was deleted holds the lock and waits for this deployment.
    needs_lock, guard = bool(cluster_plan.pod_ending_actions) and request.training is None, request.guard
    with acquire_lock(guard.results_folder, "deploy") if needs_lock else contextlib.nullcontext():
        lost = guard.check(cluster_plan)
        _try_writing(cluster, cluster_plan, Verb.CREATE, Verb.APPLY)  # a missing permission is found before any change
        secret = request.read_password() if cluster_plan.makes_secret else None
        if request.training is not None:
            request.training.on_accepted()
        _execute_plan(request, cluster, cluster_plan, secret)
        guard.record_discarded(lost)


def _wait(request: DeployRequest, cluster: Cluster, jobs: Sequence[str], *, new_login: bool = False) -> None:
    limit = request.placement.section.ready_timeout_sec
    wait_for_pods(cluster, jobs, limit, new_login=new_login)
    if request.advice:
        print(request.advice)


def _try_changes(cluster: Cluster, objects: Sequence[Object]) -> Sequence[Object]:
    """Return what the server would store of these objects; empty without the permission to change them."""
    try:
        return cluster.try_apply(objects) if objects else []
    except Forbidden as error:
        print(f"changes by others cannot be seen: {error}")
        return []


def _document(cluster_plan: ClusterPlan, image: Image | None = None) -> dict[str, Any]:
    """Return a plan as JSON for programs."""
    changes = [
        {"verb": action.verb.value, "kind": action.kind, "name": action.name, "reason": action.reason}
        for action in cluster_plan.changes
    ]
    return {
        **({} if image is None else {"image": image.reference}),
        "changes": changes,
        "unchanged": len(cluster_plan.actions) - len(changes),
        "writes_pull_secret": cluster_plan.makes_secret,
    }


def _needs_secret(request: DeployRequest, cluster: Cluster) -> bool:
    name, user, image = request.placement.pull_secret, request.registry_user, request.values.image
    if name is None or cluster.has_object(KINDS["Secret"], name):
        return False
    if user is None:
        password = registry_provider(image.registry).password_name
        raise UsageError(
            f"namespace {request.placement.section.namespace} has no pull secret {name}",
            remedy=f"set registry.user, then `inv deploy` with the {password} on standard input; or set "
            "cluster.pull_secret to null for a public image",
        )
    check_registry_user(user, image.repository)
    return True


def _print_plan(cluster_plan: ClusterPlan, request: DeployRequest) -> None:
    print(f"image: {request.values.image.reference}")
    changes = [action for action in cluster_plan.actions if action.verb is not Verb.KEEP]
    unchanged = len(cluster_plan.actions) - len(changes)
    for action in changes:
        print(action)
    if cluster_plan.makes_secret:
        print(f"{'write':9}  secret/{request.placement.pull_secret}")
    counts = f"{len(cluster_plan.changes)} to change, {unchanged} unchanged"
    print(f"plan: overlay {request.placement.overlay}: {counts}", flush=True)


def _print_diff(cluster: Cluster, cluster_plan: ClusterPlan) -> None:
    """Print the changed lines, and have the server try what is new. Raises a task's errors."""
    for action in cluster_plan.with_verb(Verb.APPLY, Verb.REPLACE):
        print(describe_change(action), end="")
    is_tried = _try_writing(cluster, cluster_plan, Verb.CREATE)
    reason = "" if is_tried else "; the namespace does not exist yet, so everything in it is new"
    print(f"dry run: nothing was changed{reason}")


def _try_writing(cluster: Cluster, cluster_plan: ClusterPlan, *verbs: Verb) -> bool:
    """Have the server try what the plan writes; False if the namespace does not exist. Raises a task's errors."""
    written = [action.desired for action in cluster_plan.with_verb(*verbs) if action.desired is not None]
    if any(item["kind"] == "Namespace" for item in written):
        return False
    # A binding whose Role is new cannot be tried: for a user without the right to grant everything the server reads the
    # Role, which does not exist in a dry run. The deployment itself creates the Role first.
    new_roles = [action.name for action in cluster_plan.with_verb(Verb.CREATE) if action.kind == "Role"]
    objects = [item for item in written if item["kind"] != "RoleBinding" or item["roleRef"]["name"] not in new_roles]
    if objects:
        cluster.try_apply(objects)
    return True


def _execute_plan(request: DeployRequest, cluster: Cluster, cluster_plan: ClusterPlan, secret: Secret | None) -> None:
    """Apply the plan in the order of dependencies: other objects, the secret, old Jobs deleted, new Jobs."""
    gone = [a.live for a in cluster_plan.with_verb(Verb.DELETE, Verb.REPLACE) if a.live is not None]
    deleted = [live for live in gone if not is_being_deleted(live)]
    written = cluster_plan.with_verb(Verb.CREATE, Verb.APPLY, Verb.REPLACE)
    workloads = [a.desired for a in written if a.kind in WORKLOADS and a.desired is not None]
    others = [a.desired for a in written if a.kind not in WORKLOADS and a.desired is not None]
    if ending := [live for live in gone if is_being_deleted(live)]:
        _delete(cluster, ending)
    if others:
        cluster.apply(others)
        print(f"applied {formatting.count(len(others), 'object')}", flush=True)
    name, user, image = request.placement.pull_secret, request.registry_user, request.values.image
    if secret is not None and name is not None and user is not None:
        namespace = request.placement.section.namespace
        secret_object, hidden = pull_secret(
            name=name, namespace=namespace, registry=image.registry, user=user, password=secret
        )
        cluster.apply([secret_object], secrets=hidden)
        print(f"wrote secret/{name}", flush=True)
    if deleted:
        cluster.check_creation([a.desired for a in cluster_plan.with_verb(Verb.REPLACE) if a.desired in workloads])
        print(f"deleting {_titles(deleted)}", flush=True)
        _delete(cluster, deleted)
    if workloads:
        cluster.apply(workloads)
        print(f"started {_titles(workloads)}", flush=True)


def _delete(cluster: Cluster, objects: Sequence[Object]) -> None:
    """Delete these objects, and wait until they and their pods are gone."""
    with Wait(f"waiting until {_titles(objects)} are gone"):
        cluster.delete(objects, wait_sec=DELETE_TIMEOUT_SEC)


def _titles(objects: Sequence[Object]) -> str:
    return ", ".join(f"{item['kind'].lower()}/{item['metadata']['name']}" for item in objects)


def delete_fleet(context: Context, *, dry_run: bool, yes: bool, discard_results: bool) -> CommandResult | None:
    settings = load(context)
    with open_cluster(settings) as cluster:
        live = [item for item in cluster.live_objects() if item["kind"] != "Namespace"]
        live += cluster.list_fleet_objects("Secret")
        groups: dict[bool, list[Object]] = {True: [], False: []}  # workloads first: they use the other objects
        for item in filter(is_owned, live):
            groups[item["kind"] in WORKLOADS].append(item)
        own = [*groups[True], *groups[False]]
        cluster_plan = ClusterPlan(
            actions=tuple(
                Action(verb=Verb.DELETE, kind=item["kind"], name=item["metadata"]["name"], live=item) for item in own
            )
        )
        guard = ResultsGuard(cluster, settings.results_folder, settings.fleet.pods, discards=discard_results)
        if not own:
            print("nothing to do: nothing of this fleet is deployed")
            return CommandResult(data=_document(cluster_plan)) if dry_run else None
        for action in cluster_plan.actions:
            print(action)
        volume = ", and the files on the shared volume" if settings.cluster.volume.handle else ""
        print(f"kept: namespace {cluster.target.namespace}{volume}")
        if dry_run:
            refused = guard.print_refusal(cluster_plan)
            return plan_result([], **_document(cluster_plan), refused=refused)
        with acquire_lock(settings.results_folder, "teardown"):
            lost = guard.check(cluster_plan)
            if not yes:
                if not confirm(f"Delete these {len(own)} objects in {cluster.target.namespace}?"):
                    raise ConfirmationRequired("nothing was deleted", remedy="pass --yes to confirm")
                lost = guard.check(cluster_plan)  # the question may have waited for long
            for group in filter(None, groups.values()):
                _delete(cluster, group)
            guard.record_discarded(lost)
        print(f"deleted {len(own)} objects")
    return None
