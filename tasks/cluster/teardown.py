"""`inv teardown`: delete what `inv deploy` made."""

from invoke.context import Context

from remote.cluster.labels import is_owned
from remote.cluster.plan import Action, ClusterPlan, Verb
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import asks
from tasks.clients.cluster import cluster_of
from tasks.cluster.checks import print_refusal, refuse_losing_results, write_down
from tasks.cluster.deploy import DELETE_SEC
from tasks.errors import ConfirmationRequired
from tasks.settings.load import load


def delete_fleet(context: Context, *, dry_run: bool, yes: bool, discard_results: bool) -> None:
    settings = load(context)
    with cluster_of(settings, changes=not dry_run, yes=yes) as cluster:
        live = [one for one in cluster.live() if one["kind"] != "Namespace"]
        live += cluster.secrets()
        own = [one for one in live if is_owned(one)]
        # Workloads first: what they use goes when nobody uses it any more.
        own.sort(key=lambda one: one["kind"] not in ("Job", "JobSet"))
        named = [(one, one["kind"], one["metadata"]["name"]) for one in own]
        planned = ClusterPlan(
            actions=tuple(Action(verb=Verb.DELETE, kind=kind, name=name, why="", live=one) for one, kind, name in named)
        )
        if not own:
            print("nothing to do: nothing of this fleet is deployed")
            return
        for action in planned.actions:
            print(action)
        volume = ", and what is on the shared volume" if settings.cluster.fss.volume_handle else ""
        print(f"stays: namespace {cluster.target.namespace}{volume}")
        if dry_run:
            print_refusal(settings, cluster, planned, may_lose=discard_results)
            print("dry run: nothing was changed")
            return
        with acquire_lock(settings.results_folder, "teardown"):
            lost = refuse_losing_results(settings, cluster, planned, may_lose=discard_results)
            if not yes and not asks(f"Delete these {len(own)} objects in {cluster.target.namespace}?"):
                raise ConfirmationRequired("nothing was deleted; type the same with --yes if it is meant")
            workloads = [one for one in own if one["kind"] in ("Job", "JobSet")]
            for some in (workloads, [one for one in own if one not in workloads]):
                if some:
                    cluster.delete(some, wait_sec=DELETE_SEC)
            write_down(settings, cluster, lost)
        print(f"deleted {len(own)} objects")
