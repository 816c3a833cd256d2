"""`inv deploy` and `inv teardown`: observe, plan, act, observe again.

A deployment that is there and unchanged is only read. Whatever ends running pods asks first for the results in them.
"""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import Refused, TaskFailed, UsageError

if TYPE_CHECKING:
    from remote.cluster.client import Cluster
    from remote.cluster.labels import Object
    from remote.cluster.manifests import Image
    from remote.cluster.plan import Action, Plan
    from remote.hosts.command import Secret
    from tasks.fleet.uncollected import Uncollected
    from tasks.settings.load import Settings

MANIFESTS = "manifests"
_DELETE_SEC = 180.0
_YES = "do not ask before changing a cluster that looks like production"
_DISCARD = "go on though results in the pods were not collected; they are lost"


@task(
    help={
        "dry-run": "print the plan and what would differ, and change nothing",
        "yes": _YES,
        "renew-secret": "read the registry's password from standard input again, and write the pull secret anew",
        "replace": "start Jobs that have failed or completed again",
        "partial": "go on though fewer nodes qualify than are needed (an autoscaler may add them), and wait for all",
        "take-over": "take fields that somebody else manages (kubectl's --force-conflicts)",
        "discard-results": _DISCARD,
        "plain": "plain lines instead of the live table, also on a terminal",
    }
)
def deploy(
    context: Context,
    dry_run: bool = False,
    yes: bool = False,
    renew_secret: bool = False,
    replace: bool = False,
    partial: bool = False,
    take_over: bool = False,
    discard_results: bool = False,
    plain: bool = False,
) -> None:
    """Bring the cluster to what is set, and wait for the pods."""
    from remote.cluster.manifests import render
    from remote.cluster.plan import plan
    from tasks.cli.lock import only_one
    from tasks.cluster.wait import state_of, wait
    from tasks.connect.cluster import cluster_of, errors, image_of, remember, values_of
    from tasks.settings import load as house

    settings = house.load(context)
    image = image_of(settings)
    with errors():
        desired = render(values_of(settings, image), settings.root / MANIFESTS)
    with cluster_of(settings, changes=not dry_run, yes=yes) as cluster:
        live = cluster.live()
        makes_secret = _makes_secret(settings, cluster, image, renew=renew_secret)
        planned = plan(desired, live, makes_secret=makes_secret, replace_ended=replace)
        _print_plan(planned, image, settings)
        jobs = [one for one in desired if one["kind"] == "Job"]
        if planned.is_empty:
            state = state_of(cluster, jobs)
            if state.is_up or dry_run or not jobs:
                print(f"nothing to do: {state.up} of {len(state.rows)} pods are up")
                return
            wait(settings, cluster, jobs, plain=plain)
            return
        _check_nodes(settings, cluster, image, planned, partial=partial or dry_run)
        _check_controller(settings, cluster, planned)
        _check_rights(cluster, planned)
        if dry_run:
            _print_refusal(settings, cluster, planned, discard=discard_results)
            _print_diff(cluster, planned, take_over=take_over)
            return
        with only_one(settings.results_folder, "deploy"):
            lost = _refuse_losing_results(settings, cluster, planned, discard=discard_results)
            secret = _ask_password(settings, image) if makes_secret else None
            _act(settings, cluster, planned, image, secret, take_over=take_over)
            remember(settings, cluster.target, discarded=lost)
        if jobs:
            old_pods = not any(action.kind == "Job" for action in planned.changes)
            wait(settings, cluster, jobs, plain=plain, new_login=makes_secret and old_pods)


@task(
    help={
        "dry-run": "print what would be deleted, and change nothing",
        "yes": "do not ask",
        "discard-results": _DISCARD,
    }
)
def teardown(context: Context, dry_run: bool = False, yes: bool = False, discard_results: bool = False) -> None:
    """Delete what `inv deploy` made.

    The namespace stays, and so does what is on the shared volume.
    """
    from remote.cluster.labels import is_owned
    from remote.cluster.plan import Action, Plan, Verb
    from tasks.cli.lock import only_one
    from tasks.connect.cluster import asks, cluster_of, remember
    from tasks.settings import load as house

    settings = house.load(context)
    with cluster_of(settings, changes=not dry_run, yes=yes) as cluster:
        live = [one for one in cluster.live() if one["kind"] != "Namespace"]
        live += cluster.secrets()
        own = [one for one in live if is_owned(one)]
        # Workloads first: what they use goes when nobody uses it any more.
        own.sort(key=lambda one: one["kind"] not in ("Job", "JobSet"))
        named = [(one, one["kind"], one["metadata"]["name"]) for one in own]
        planned = Plan(
            actions=tuple(Action(verb=Verb.DELETE, kind=kind, name=name, why="", live=one) for one, kind, name in named)
        )
        if not own:
            print("nothing to do: nothing of this fleet is deployed")
            return
        for action in planned.actions:
            print(action)
        print(f"stays: namespace {cluster.target.namespace}" + _volume_stays(settings))
        if dry_run:
            _print_refusal(settings, cluster, planned, discard=discard_results)
            print("dry run: nothing was changed")
            return
        with only_one(settings.results_folder, "teardown"):
            lost = _refuse_losing_results(settings, cluster, planned, discard=discard_results)
            if not yes and not asks(f"Delete these {len(own)} objects in {cluster.target.namespace}?"):
                raise Refused("nothing was deleted; type the same with --yes if it is meant")
            workloads = [one for one in own if one["kind"] in ("Job", "JobSet")]
            for some in (workloads, [one for one in own if one not in workloads]):
                if some:
                    cluster.delete(some, wait_sec=_DELETE_SEC)
            remember(settings, cluster.target, discarded=lost)
        print(f"deleted {len(own)} objects")


def _makes_secret(settings: Settings, cluster: Cluster, image: Image, *, renew: bool) -> bool:
    from remote.image.names import NameWrong, check_user

    section = settings.cluster
    if section.pull_secret is None:
        if renew:
            raise UsageError("deploy: --renew-secret: cluster.pull_secret is null (a public image); give it a name")
        return False
    if not renew and cluster.has_secret(section.pull_secret):
        return False
    if section.registry_user is None:
        raise UsageError(
            f"namespace {section.namespace} has no secret {section.pull_secret}; set cluster.registry_user and type "
            "the same with the auth token on standard input, or set cluster.pull_secret to null for a public image"
        )
    try:
        check_user(section.registry_user, image.repository)
    except NameWrong as error:
        raise UsageError(f"cluster.registry_user: {error}") from None
    return True


def _ask_password(settings: Settings, image: Image) -> Secret:
    from remote.hosts.command import Secret

    who = f"{settings.cluster.registry_user} at {image.registry}"
    is_typed = sys.stdin.isatty()
    text = getpass.getpass(f"auth token of {who}: ") if is_typed else sys.stdin.readline().rstrip("\n")
    if not text:
        raise UsageError(f"no auth token for {who} on standard input; for example: inv deploy < FILE-WITH-THE-TOKEN")
    return Secret(text)


def _print_plan(planned: Plan, image: Image, settings: Settings) -> None:
    from remote.cluster.plan import Verb

    print(f"image: {image.reference}")
    shown = [action for action in planned.actions if action.verb is not Verb.KEEP]
    kept = len(planned.actions) - len(shown)
    for action in shown:
        print(action)
    if planned.makes_secret:
        print(f"{'write':9}  secret/{settings.cluster.pull_secret}  (password from standard input)")
    print(f"plan: overlay {settings.cluster.overlay}: {len(planned.changes)} to change, {kept} unchanged", flush=True)
    if settings.cluster.overlay.startswith("job-") and settings.cluster.fss.volume_handle is None and shown:
        print(
            "ATTENTION: without cluster.fss the result of this job ends with its pod, and only its log is left "
            "(`inv logs`)"
        )


def _print_diff(cluster: Cluster, planned: Plan, *, take_over: bool) -> None:
    from remote.cluster.plan import Verb

    if any(action.kind == "Namespace" for action in planned.of(Verb.CREATE)):
        print("dry run: nothing was changed; the namespace is not there yet, so everything in it is new")
        return
    # A Job that is replaced cannot be compared by the server, which would refuse the change.
    for action in planned.of(Verb.REPLACE):
        for one in action.differences:
            print(f"{action.title}  {one}")
    objects = [action.desired for action in planned.of(Verb.CREATE, Verb.APPLY) if action.desired is not None]
    if objects:
        print(cluster.diff(objects, take_over=take_over), end="")
    print("dry run: nothing was changed")


def _check_nodes(settings: Settings, cluster: Cluster, image: Image, planned: Plan, *, partial: bool) -> None:
    from remote.cluster.errors import Forbidden
    from remote.cluster.plan import Verb
    from tasks.cluster.nodes import need_of, report, show, too_few

    starts = [a for a in planned.of(Verb.CREATE, Verb.REPLACE) if a.kind in ("Job", "JobSet") and a.desired]
    if not starts:
        return
    wanted = max(_pods_of(action) for action in starts)
    try:
        reports = report(cluster, need_of(settings, image))
    except Forbidden as error:
        print(f"the nodes cannot be checked: {error}")
        return
    able = sum(one.qualifies for one in reports)
    if able >= wanted:
        print(f"nodes: {able} qualify, {wanted} are needed", flush=True)
        return
    show(reports)
    if partial:
        print(f"nodes: only {able} of {wanted} qualify", flush=True)
        return
    raise TaskFailed(f"{too_few(able, wanted, reports)}; or type the same with --partial; nothing was changed")


def _pods_of(action: Action) -> int:
    spec = (action.desired or {}).get("spec", {})
    if action.kind == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return int(spec.get("parallelism", 1))


# overlay: (the API group that it needs, whose that is)
_CONTROLLERS = {"job-4gpu-jobset": ("jobset.x-k8s.io", "JobSet"), "job-4gpu-kueue": ("kueue.x-k8s.io", "Kueue")}


def _check_controller(settings: Settings, cluster: Cluster, planned: Plan) -> None:
    """Raise UsageError for an overlay whose controller is missing: a Job for a queue that nobody keeps would start."""
    from remote.cluster.plan import Verb

    needed = _CONTROLLERS.get(settings.cluster.overlay)
    if needed is None or not planned.of(Verb.CREATE, Verb.REPLACE):
        return
    group, name = needed
    if not cluster.knows_group(group):
        raise UsageError(
            f"this cluster knows no {name}: its controller is not installed; choose another cluster.overlay "
            "(job-4gpu does the same without it), or have it installed; nothing was changed"
        )


def _check_rights(cluster: Cluster, planned: Plan) -> None:
    """Raise UsageError for rights that are missing, before anything is half done. pods/exec needs both its verbs."""
    from concurrent.futures import ThreadPoolExecutor

    from remote.cluster.kinds import KINDS, POD

    asked = [(verb, KINDS[kind], "") for verb, kind in planned.permissions]
    asked += [(verb, POD, "exec") for verb in ("get", "create")]
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda one: cluster.allowed(*one), asked))
    missing = [
        f"{verb} {kind.plural}{'/' + sub if sub else ''}"
        for (verb, kind, sub), is_allowed in zip(asked, answers, strict=True)
        if not is_allowed
    ]
    if missing:
        raise UsageError(
            f"user {cluster.target.user} may not {', '.join(missing)} in namespace {cluster.target.namespace}; "
            "ask the cluster's administrator for these rights (manifests/base/access.yaml has the role); "
            "nothing was changed"
        )


def _refuse_losing_results(settings: Settings, cluster: Cluster, planned: Plan, *, discard: bool) -> list[Uncollected]:
    """The runs that are lost with the pods that the plan ends. Raises Refused unless they may be."""
    from remote.cluster.plan import is_training
    from tasks.fleet.uncollected import others_at_work, uncollected

    for action in planned.ends_pods:
        if action.live is not None and is_training(action.live) and not discard:
            raise Refused(
                f"{action.title} is still training; wait for it (`inv status`), "
                "or type the same with --discard-results; nothing was changed"
            )
    lost = uncollected(settings.results_folder, cluster.target) if planned.ends_pods else []
    if lost and not discard:
        more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise Refused(
            f"{planned.ends_pods[0].title} would end with results in its pods: "
            f"{'; '.join(one.said for one in lost[:3])}{more}; "
            "or type the same with --discard-results; nothing was changed"
        )
    busy = others_at_work(settings, cluster.target) if planned.ends_pods and not discard else []
    if busy:
        raise Refused(
            f"{planned.ends_pods[0].title} would end what runs in its pods: {'; '.join(busy[:3])}; wait for it "
            "(`inv monitor`), or type the same with --discard-results; nothing was changed"
        )
    return lost


def _print_refusal(settings: Settings, cluster: Cluster, planned: Plan, *, discard: bool) -> None:
    """In a dry run: what would stop the plan once it is meant."""
    try:
        _refuse_losing_results(settings, cluster, planned, discard=discard)
    except Refused as error:
        print(f"would be refused: {error}")


def _act(
    settings: Settings, cluster: Cluster, planned: Plan, image: Image, secret: Secret | None, *, take_over: bool
) -> None:
    """In this order, so that nothing waits for what is not there yet: ground, secret, old Jobs gone, new Jobs."""
    from remote.cluster.plan import Verb
    from remote.cluster.pullsecret import pull_secret

    section = settings.cluster
    gone = [a.live for a in planned.of(Verb.DELETE, Verb.REPLACE) if a.live is not None]
    written = planned.of(Verb.CREATE, Verb.APPLY, Verb.REPLACE)
    workloads = [a.desired for a in written if a.kind in ("Job", "JobSet") and a.desired is not None]
    ground = [a.desired for a in written if a.kind not in ("Job", "JobSet") and a.desired is not None]
    if ground:
        cluster.apply(ground, take_over=take_over)
        print(f"applied {len(ground)} object{'' if len(ground) == 1 else 's'}", flush=True)
    if secret is not None and section.pull_secret is not None and section.registry_user is not None:
        made, hidden = pull_secret(
            name=section.pull_secret,
            namespace=section.namespace,
            registry=image.registry,
            user=section.registry_user,
            password=secret,
        )
        cluster.apply([made], take_over=True, secrets=hidden)
        print(f"wrote secret/{section.pull_secret}", flush=True)
    if gone:
        print(f"deleting {_titles(gone)}, and waiting until their pods are gone", flush=True)
        cluster.delete(gone, wait_sec=_DELETE_SEC)
    if workloads:
        cluster.apply(workloads, take_over=take_over)
        print(f"started {_titles(workloads)}", flush=True)


def _titles(objects: list[Object]) -> str:
    return ", ".join(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in objects)


def _volume_stays(settings: Settings) -> str:
    return ", and what is on the shared volume" if settings.cluster.fss.volume_handle else ""
