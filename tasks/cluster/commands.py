"""Cluster commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task

_YES = "do not ask for confirmation if the cluster looks like production"
_JSON = "print one JSON object; other output goes to standard error"
_DISCARD = "continue if results in the pods have not been collected; they are lost"


@task(help={"json": _JSON})
def nodes(context: Context, json: bool = False) -> None:
    """Show which GPU nodes qualify, and why others do not."""
    from tasks.cluster.nodes import show_nodes

    show_nodes(context, as_json=json)


@task(
    help={
        "dry-run": "print the plan and the differences, and change nothing",
        "yes": _YES,
        "renew-secret": "read the registry password again and rewrite the pull secret",
        "force": "delete Jobs that have failed or completed, and start them again",
        "partial": "deploy even if too few nodes qualify, and wait for all pods (an autoscaler may add nodes)",
        "force-conflicts": "overwrite fields that another manager owns, like `kubectl apply --force-conflicts`",
        "discard-results": _DISCARD,
        "plain": "plain lines instead of the live display, also on a terminal",
    }
)
def deploy(
    context: Context,
    dry_run: bool = False,
    yes: bool = False,
    renew_secret: bool = False,
    force: bool = False,
    partial: bool = False,
    force_conflicts: bool = False,
    discard_results: bool = False,
    plain: bool = False,
) -> None:
    """Apply the settings to the cluster and wait for the pods."""
    from tasks.cluster.deploy import DeployOptions, deploy_fleet

    options = DeployOptions(
        dry_run=dry_run,
        yes=yes,
        renew_secret=renew_secret,
        force=force,
        partial=partial,
        force_conflicts=force_conflicts,
        discard_results=discard_results,
        plain=plain,
    )
    deploy_fleet(context, options)


@task(
    help={
        "dry-run": "print the objects to delete, and change nothing",
        "yes": "do not ask for confirmation",
        "discard-results": _DISCARD,
    }
)
def teardown(context: Context, dry_run: bool = False, yes: bool = False, discard_results: bool = False) -> None:
    """Delete the objects that `inv deploy` created.

    The namespace and the files on the shared volume are kept.
    """
    from tasks.cluster.teardown import delete_fleet

    delete_fleet(context, dry_run=dry_run, yes=yes, discard_results=discard_results)


@task(help={"json": _JSON})
def status(context: Context, json: bool = False) -> None:
    """Show every pod, and the problem of each unready pod."""
    from tasks.cluster.status import show_status

    show_status(context, as_json=json)


@task(help={"pod": "name or index of the pod (default: the first that is Ready)"})
def shell(context: Context, pod: str | None = None) -> None:
    """Open a shell in a pod, or run commands from stdin."""
    from tasks.cluster.status import open_shell

    open_shell(context, pod)


@task(
    help={
        "pod": "name or index of the pod (default: all pods, with the pod's name on each line)",
        "follow": "print new lines until Ctrl-C",
        "previous": "show the log of the container before its last restart",
        "tail": "number of last lines to show (default: 100)",
    },
)
def logs(
    context: Context, pod: str | None = None, follow: bool = False, previous: bool = False, tail: str = "100"
) -> None:
    """Show the logs of the pods.

    The log of a trial comes with `inv collect`.
    """
    from tasks.cluster.status import show_logs

    show_logs(context, pod, follow=follow, previous=previous, tail=tail)
