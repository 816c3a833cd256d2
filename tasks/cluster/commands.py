"""Commands for the cluster, with their flags and help."""

from dataclasses import dataclass

from tasks.cli.command_result import Effect
from tasks.cli.flags import Command, Section, number, switch, text
from tasks.commands import DISCARD, DRY_RUN_OF_OBJECTS


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    dry_run: bool = switch(DRY_RUN_OF_OBJECTS)
    force: bool = switch("delete Jobs that have failed or completed, and start them again")
    partial: bool = switch("deploy even if too few nodes qualify, and wait for all pods (an autoscaler may add nodes)")
    discard_results: bool = switch(DISCARD)


nodes = Command(
    "nodes",
    "tasks.cluster.node_list:show_nodes",
    "Show which GPU nodes qualify, and why others do not.",
    section=Section.CLUSTER,
    effect=Effect.BOTH,
    cordon=switch("cordon nodes whose GPUs or links have a problem: they accept no new pods"),
    dry_run=switch("with --cordon: print the nodes to cordon, and change nothing"),
)
deploy = Command(
    "deploy",
    "tasks.cluster.deploy:deploy_fleet",
    "Apply the settings to the cluster and wait for the pods.",
    section=Section.CLUSTER,
    effect=Effect.CHANGES,
    is_daily=True,
    examples=("inv deploy bench --quick collect report  # then a first benchmark",),
    options=DeployOptions,
)
status = Command(
    "status",
    "tasks.cluster.pod_status:show_status",
    "Show every pod, and the problem of each unready pod.",
    section=Section.CLUSTER,
    effect=Effect.SHOWS,
)
logs = Command(
    "logs",
    "tasks.cluster.pod_status:show_logs",
    "Show the logs of the pods.\n\nThe log of a trial comes with `inv collect`.",
    section=Section.CLUSTER,
    effect=Effect.SHOWS,
    pod=text("name or index of the pod", unset="all pods, with the pod's name on each line"),
    follow=switch("print new lines until Ctrl-C"),
    tail=number(int, "number of last lines to show", 100, ge=0),
)
teardown = Command(
    "teardown",
    "tasks.cluster.deploy:delete_fleet",
    "Delete the objects that `inv deploy` created.\n\nThe namespace and the files on the shared volume are kept.",
    section=Section.CLUSTER,
    effect=Effect.CHANGES,
    examples=("inv collect teardown  # results first",),
    dry_run=switch("print the objects to delete, and change nothing"),
    yes=switch("do not ask for confirmation"),
    discard_results=switch(DISCARD),
)
