"""The cluster's verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from invoke.context import Context
from invoke.tasks import task

_YES = "do not ask before changing a cluster that looks like production"
_JSON = "print one JSON object for programs; all else goes to standard error"
_DISCARD = "go on though results in the pods were not collected; they are lost"


@task(help={"json": _JSON})
def nodes(context: Context, json: bool = False) -> None:
    """Check the GPU nodes: which qualify, why not the others."""
    from tasks.cluster.nodes import check_nodes

    check_nodes(context, as_json=json)


@task(
    help={
        "dry-run": "print the plan and what would differ, and change nothing",
        "yes": _YES,
        "renew-secret": "read the registry's password again, and write the pull secret anew",
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
    from tasks.cluster.deploy import DeployOptions, deploy_fleet

    choices = DeployOptions(
        dry_run=dry_run,
        yes=yes,
        renew_secret=renew_secret,
        replace=replace,
        partial=partial,
        take_over=take_over,
        discard_results=discard_results,
        plain=plain,
    )
    deploy_fleet(context, choices)


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
    from tasks.cluster.teardown import delete_fleet

    delete_fleet(context, dry_run=dry_run, yes=yes, discard_results=discard_results)


@task(help={"json": _JSON})
def status(context: Context, json: bool = False) -> None:
    """Show every pod, and what is wrong with those not up."""
    from tasks.cluster.status import show_status

    show_status(context, as_json=json)


@task(help={"pod": "a pod's name, or its index (default: the first that is Ready)"})
def shell(context: Context, pod: str | None = None) -> None:
    """Open a shell in a pod, or run what standard input says."""
    from tasks.cluster.status import open_shell

    open_shell(context, pod)


@task(
    help={
        "pod": "a pod's name, or its index (default: all of them, each line with its pod)",
        "follow": "go on until Ctrl-C",
        "previous": "of the container that ran before the last restart",
        "tail": "only the last lines, as many as this (default: 100)",
    },
)
def logs(
    context: Context, pod: str | None = None, follow: bool = False, previous: bool = False, tail: str = "100"
) -> None:
    """Show what the pods themselves have written.

    A trial's own log comes with `inv collect`.
    """
    from tasks.cluster.status import show_logs

    show_logs(context, pod, follow=follow, previous=previous, tail=tail)
