"""`inv deploy`: observe, plan, apply, observe again; read only what is unchanged. `inv teardown`: delete it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from invoke.context import Context

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.labels import Object, is_owned
from remote.cluster.manifests import JOB_PREFIX, Image, pull_secret, render
from remote.cluster.plan import Action, ClusterPlan, Verb, comparable, describe_change, is_being_deleted, plan
from remote.hosts.command import Secret
from remote.hosts.pods.kubectl import Forbidden
from remote.providers import registry_provider
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import confirm
from tasks.clients.cluster import MANIFESTS, manifest_values, open_cluster, resolve_provider
from tasks.clients.registry import resolve_image
from tasks.clients.secrets import check_registry_user, registry_password
from tasks.cluster.checks import (
    NO_SECRET,
    check_controller,
    check_node_capacity,
    check_pending_results,
    check_permissions,
    check_storage,
    print_refusal,
)
from tasks.cluster.commands import DeployOptions
from tasks.cluster.status import read_state, wait_for_pods
from tasks.errors import ConfirmationRequired, UsageError
from tasks.fleet.pending_results import record_change
from tasks.settings.load import Settings, load

DELETE_TIMEOUT_SEC = 180.0


@dataclass(frozen=True, kw_only=True)
class DeployHooks:
    """Values and callbacks of a task that deploys, in addition to the settings.

    `overlay` replaces cluster.overlay. `values` go to the manifests, where `components` read them; `server` is the
    image of a server. `on_start` is called after the last check, and `before_pods` when everything exists except the
    pods. `on_state` gets each state of the pods during the wait, which `wait` turns on. `is_locked`: the task holds the
    lock of the results. `retry_command` is the command that resumes.
    """

    overlay: str | None = None
    values: Mapping[str, str | int | list[str]] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    server: Image | None = None
    on_start: Callable[[Cluster], object] = lambda _cluster: None
    before_pods: Callable[[Cluster], object] = lambda _cluster: None
    on_state: Callable[[PodFleet], object] = lambda _state: None
    wait: bool = True
    is_locked: bool = False
    retry_command: str = "inv deploy"


def deploy_fleet(context: Context, options: DeployOptions) -> CommandResult | None:
    settings = load(context)
    if settings.cluster.overlay.startswith(JOB_PREFIX):
        raise UsageError(f"cluster.overlay: {settings.cluster.overlay} runs a training", remedy="type `inv train`")
    return apply(settings, options)


def apply(settings: Settings, options: DeployOptions, hooks: DeployHooks | None = None) -> CommandResult | None:
    """Apply the settings to the cluster and wait for the pods. Returns the plan of a dry run."""
    hooks = hooks or DeployHooks()
    image = resolve_image(settings)
    with open_cluster(settings, changes=not options.dry_run, yes=options.yes) as cluster:
        settings = resolve_provider(settings, cluster)
        values = manifest_values(settings, image, hooks.overlay)
        values = replace(
            values,
            extra_settings={**values.extra_settings, **hooks.values},
            components=(*values.components, *hooks.components),
            server_image=hooks.server,
        )
        desired = render(values, settings.root / MANIFESTS)
        live = cluster.live_objects()
        makes_secret = _needs_secret(settings, cluster, image, renew=options.renew_secret)
        applied = _try_changes(cluster, comparable(desired, live), force_conflicts=options.force_conflicts)
        cluster_plan = plan(desired, live, applied, makes_secret=makes_secret, replace_ended=options.force)
        _print_plan(cluster_plan, image, settings, values.overlay)
        jobs = [item for item in desired if item["kind"] == "Job"]
        await_pods = partial(
            wait_for_pods,
            settings,
            cluster,
            jobs,
            plain=options.plain,
            on_state=hooks.on_state,
            retry_command=hooks.retry_command,
        )
        if cluster_plan.is_empty:
            state = read_state(cluster, jobs)
            if state.is_up or options.dry_run or not jobs:
                print(f"nothing to do: {state.up_count} of {len(state.rows)} pods are up")
                return CommandResult(data=_document(cluster_plan, image)) if options.dry_run else None
            await_pods()
            return None
        check_node_capacity(settings, cluster, image, cluster_plan, partial=options.partial or options.dry_run)
        check_controller(values.overlay, cluster, cluster_plan)
        check_storage(cluster, cluster_plan)
        check_permissions(cluster, cluster_plan)
        if options.dry_run:
            refused = print_refusal(settings, cluster, cluster_plan, discard_results=options.discard_results)
            _print_diff(cluster, cluster_plan, force_conflicts=options.force_conflicts)
            return CommandResult(data={**_document(cluster_plan, image), "refused": refused})
        # Lock only if pods end: a run whose Job was deleted holds the lock and waits for this deployment.
        needs_lock = bool(cluster_plan.pod_ending_actions) and not hooks.is_locked
        with acquire_lock(settings.results_folder, "deploy") if needs_lock else contextlib.nullcontext():
            lost = check_pending_results(settings, cluster, cluster_plan, discard_results=options.discard_results)
            user = settings.registry.user or ""
            secret = registry_password(settings, user, image.registry, "inv deploy") if makes_secret else None
            hooks.on_start(cluster)
            _execute_plan(
                settings, cluster, cluster_plan, image, secret, hooks, force_conflicts=options.force_conflicts
            )
            record_change(settings, cluster.target, lost)
        if jobs and hooks.wait:
            old_pods = not any(action.kind == "Job" for action in cluster_plan.changes)
            await_pods(new_login=makes_secret and old_pods)
    return None


def _try_changes(cluster: Cluster, objects: Sequence[Object], *, force_conflicts: bool) -> Sequence[Object]:
    """Return what the server would store of these objects; empty without the permission to change them."""
    if not objects:
        return []
    try:
        return cluster.try_apply(objects, force_conflicts=force_conflicts)
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


def _needs_secret(settings: Settings, cluster: Cluster, image: Image, *, renew: bool) -> bool:
    section, user = settings.cluster, settings.registry.user
    if section.pull_secret is None:
        if renew:
            raise UsageError(
                "deploy: --renew-secret: cluster.pull_secret is null (a public image)", remedy="give it a name"
            )
        return False
    if not renew and cluster.has_secret(section.pull_secret):
        return False
    if user is None:
        provider = registry_provider(image.registry)
        raise NO_SECRET.error(provider, namespace=section.namespace, secret=section.pull_secret)
    check_registry_user(user, image.repository)
    return True


def _print_plan(cluster_plan: ClusterPlan, image: Image, settings: Settings, overlay: str) -> None:
    print(f"image: {image.reference}")
    changes = [action for action in cluster_plan.actions if action.verb is not Verb.KEEP]
    unchanged = len(cluster_plan.actions) - len(changes)
    for action in changes:
        print(action)
    if cluster_plan.makes_secret:
        print(f"{'write':9}  secret/{settings.cluster.pull_secret}")
    counts = f"{len(cluster_plan.changes)} to change, {unchanged} unchanged"
    print(f"plan: overlay {overlay}: {counts}", flush=True)


def _print_diff(cluster: Cluster, cluster_plan: ClusterPlan, *, force_conflicts: bool) -> None:
    """Print the changed lines, and have the server try what is new. Raises a task's errors."""
    for action in cluster_plan.with_verb(Verb.APPLY, Verb.REPLACE):
        print(describe_change(action), end="")
    created = cluster_plan.with_verb(Verb.CREATE)
    if any(action.kind == "Namespace" for action in created):
        print("dry run: nothing was changed; the namespace does not exist yet, so everything in it is new")
        return
    # A binding whose Role is new cannot be tried: for a user without the right to grant everything the server reads the
    # Role, which does not exist in a dry run. The deployment itself creates the Role first.
    new_roles = {action.name for action in created if action.kind == "Role"}
    objects = [action.desired for action in created if action.desired is not None]
    objects = [item for item in objects if item["kind"] != "RoleBinding" or item["roleRef"]["name"] not in new_roles]
    if objects:
        cluster.try_apply(objects, force_conflicts=force_conflicts)
    print("dry run: nothing was changed")


def _execute_plan(
    settings: Settings,
    cluster: Cluster,
    cluster_plan: ClusterPlan,
    image: Image,
    secret: Secret | None,
    hooks: DeployHooks,
    *,
    force_conflicts: bool,
) -> None:
    """Apply the plan in the order of dependencies: other objects, the secret, old Jobs deleted, new Jobs."""
    section = settings.cluster
    gone = [a.live for a in cluster_plan.with_verb(Verb.DELETE, Verb.REPLACE) if a.live is not None]
    ending = [live for live in gone if is_being_deleted(live)]
    deleted = [live for live in gone if not is_being_deleted(live)]
    written = cluster_plan.with_verb(Verb.CREATE, Verb.APPLY, Verb.REPLACE)
    workloads = [a.desired for a in written if a.kind in ("Job", "JobSet") and a.desired is not None]
    others = [a.desired for a in written if a.kind not in ("Job", "JobSet") and a.desired is not None]
    if ending:
        print(f"waiting until {_titles(ending)} are gone", flush=True)
        cluster.delete(ending, wait_sec=DELETE_TIMEOUT_SEC)
    if others:
        cluster.apply(others, force_conflicts=force_conflicts)
        print(f"applied {len(others)} object{'' if len(others) == 1 else 's'}", flush=True)
    if secret is not None and section.pull_secret is not None and settings.registry.user is not None:
        secret_object, hidden = pull_secret(
            name=section.pull_secret,
            namespace=section.namespace,
            registry=image.registry,
            user=settings.registry.user,
            password=secret,
        )
        cluster.apply([secret_object], force_conflicts=True, secrets=hidden)
        print(f"wrote secret/{section.pull_secret}", flush=True)
    hooks.before_pods(cluster)
    if deleted:
        cluster.check_creation([a.desired for a in cluster_plan.with_verb(Verb.REPLACE) if a.desired in workloads])
        print(f"deleting {_titles(deleted)}, and waiting until their pods are gone", flush=True)
        cluster.delete(deleted, wait_sec=DELETE_TIMEOUT_SEC)
    if workloads:
        cluster.apply(workloads, force_conflicts=force_conflicts)
        print(f"started {_titles(workloads)}", flush=True)


def _titles(objects: list[Object]) -> str:
    return ", ".join(f"{item['kind'].lower()}/{item['metadata']['name']}" for item in objects)


def delete_fleet(context: Context, *, dry_run: bool, yes: bool, discard_results: bool) -> CommandResult | None:
    settings = load(context)
    with open_cluster(settings, changes=not dry_run, yes=yes) as cluster:
        live = [item for item in cluster.live_objects() if item["kind"] != "Namespace"]
        live += cluster.secrets()
        own = [item for item in live if is_owned(item)]
        # Workloads first: they use the other objects.
        own.sort(key=lambda item: item["kind"] not in ("Job", "JobSet"))
        cluster_plan = ClusterPlan(actions=tuple(map(_deletion, own)))
        if not own:
            print("nothing to do: nothing of this fleet is deployed")
            return CommandResult(data=_document(cluster_plan)) if dry_run else None
        for action in cluster_plan.actions:
            print(action)
        volume = ", and the files on the shared volume" if settings.cluster.volume.handle else ""
        print(f"kept: namespace {cluster.target.namespace}{volume}")
        if dry_run:
            refused = print_refusal(settings, cluster, cluster_plan, discard_results=discard_results)
            return plan_result([], **_document(cluster_plan), refused=refused)
        with acquire_lock(settings.results_folder, "teardown"):
            lost = check_pending_results(settings, cluster, cluster_plan, discard_results=discard_results)
            if not yes:
                if not confirm(f"Delete these {len(own)} objects in {cluster.target.namespace}?"):
                    raise ConfirmationRequired("nothing was deleted", remedy="pass --yes to confirm")
                # The question may have waited for long.
                lost = check_pending_results(settings, cluster, cluster_plan, discard_results=discard_results)
            workloads = [item for item in own if item["kind"] in ("Job", "JobSet")]
            for group in (workloads, [item for item in own if item not in workloads]):
                if group:
                    cluster.delete(group, wait_sec=DELETE_TIMEOUT_SEC)
            record_change(settings, cluster.target, lost)
        print(f"deleted {len(own)} objects")
    return None


def _deletion(live: Object) -> Action:
    return Action(verb=Verb.DELETE, kind=live["kind"], name=live["metadata"]["name"], reason="", live=live)
