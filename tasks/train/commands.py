"""Training commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task


@task(help={"out": "also write an HTML page to this file", "json": "print one JSON object"})
def check(context: Context, out: str | None = None, json: bool = False) -> None:
    """Show the examples and tokens that a training would use."""
    from tasks.train.train import check_data

    check_data(context, out, as_json=json)


@task(
    optional=["resume"],
    help={
        "workers": "train on this many of the fleet's workers (default: train.workers, else all)",
        "trial-file": "JSON file with the configuration to use (`inv tune` writes one)",
        "elastic": "without a replacement within train.replacement_timeout_sec, continue with the remaining workers",
        "resume": "resume the newest training, or the run with this id, from its last checkpoint",
        "changed": "with --resume: use the current settings, data and model even if they changed",
        "retry-failed": "with --resume: also retry a training that has failed, unchanged, from its last checkpoint",
        "dry-run": "print the plan and the predicted steps, hours, costs and memory, and start nothing",
        "plain": "plain lines instead of the live display, also on a terminal",
        "job": "deploy a Kubernetes Job that trains without this command, and exit; needs cluster.volume",
        "yes": "with --job: do not ask for confirmation if the cluster looks like production",
        "discard-results": "with --job: continue if results in the pods have not been collected; they are lost",
    },
)
def train(
    context: Context,
    workers: str | None = None,
    trial_file: str | None = None,
    elastic: bool = False,
    resume: str | None = None,
    changed: bool = False,
    retry_failed: bool = False,
    dry_run: bool = False,
    plain: bool = False,
    job: bool = False,
    yes: bool = False,
    discard_results: bool = False,
) -> None:
    """Fine-tune the model, or --resume a training."""
    from tasks.train.train import TrainOptions, train_fleet

    options = TrainOptions(
        workers=workers,
        trial_file=trial_file,
        elastic=elastic,
        resume=resume,
        changed=changed,
        retry_failed=retry_failed,
        dry_run=dry_run,
        plain=plain,
        job=job,
        yes=yes,
        discard_results=discard_results,
    )
    train_fleet(context, options)
