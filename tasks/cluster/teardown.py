"""`inv teardown`: delete the objects of `inv deploy`."""

from invoke.context import Context

from remote.cluster.labels import Object, is_owned
from remote.cluster.plan import Action, ClusterPlan, Verb
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import confirm
from tasks.clients.cluster import open_cluster
from tasks.cluster.checks import check_pending_results, print_refusal, record_change
from tasks.cluster.deploy import DELETE_TIMEOUT_SEC
from tasks.errors import ConfirmationRequired
from tasks.settings.load import load


def delete_fleet(context: Context, *, dry_run: bool, yes: bool, discard_results: bool) -> None:
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
            return
        for action in cluster_plan.actions:
            print(action)
        volume = ", and the files on the shared volume" if settings.cluster.volume.handle else ""
        print(f"kept: namespace {cluster.target.namespace}{volume}")
        if dry_run:
            print_refusal(settings, cluster, cluster_plan, discard_results=discard_results)
            print("dry run: nothing was changed")
            return
        with acquire_lock(settings.results_folder, "teardown"):
            lost = check_pending_results(settings, cluster, cluster_plan, discard_results=discard_results)
            if not yes and not confirm(f"Delete these {len(own)} objects in {cluster.target.namespace}?"):
                raise ConfirmationRequired("nothing was deleted", remedy="pass --yes to confirm")
            workloads = [item for item in own if item["kind"] in ("Job", "JobSet")]
            for group in (workloads, [item for item in own if item not in workloads]):
                if group:
                    cluster.delete(group, wait_sec=DELETE_TIMEOUT_SEC)
            record_change(settings, cluster, lost)
        print(f"deleted {len(own)} objects")


def _deletion(live: Object) -> Action:
    return Action(verb=Verb.DELETE, kind=live["kind"], name=live["metadata"]["name"], reason="", live=live)
