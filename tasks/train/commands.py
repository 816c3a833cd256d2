"""The verbs of training: signatures and help. `inv --list` reads this file, so the work is imported when one runs."""

from invoke.context import Context
from invoke.tasks import task


@task(help={"page": "write the same as an HTML page to this file", "json": "print the worker's answer as JSON instead"})
def check(context: Context, page: str | None = None, json: bool = False) -> None:
    """Show what a training would train on."""
    from tasks.train.check import check_data

    check_data(context, page, as_json=json)


@task(
    optional=["resume"],
    help={
        "workers": "train on this many of the fleet's workers (default: train.workers, else all)",
        "trial": "start from the configuration in this JSON file (`inv tune` writes one)",
        "elastic": "without a replacement within train.wait, go on with the workers there are",
        "resume": "go on with the newest training, or with the run of this id, from its last checkpoint",
        "changed": "with --resume: go on with the settings, data and model of now, which are not those of the plan",
        "dry-run": "print steps, hours, dollars and memory and the plan, and start nothing",
        "plain": "plain lines instead of the live line, also on a terminal",
        "job": "have Kubernetes train by itself: deploy a Job, and leave; needs cluster.fss",
        "yes": "with --job: do not ask before changing a cluster that looks like production",
        "discard-results": "with --job: go on though results in the pods were not collected; they are lost",
    },
)
def train(
    context: Context,
    workers: str | None = None,
    trial: str | None = None,
    elastic: bool = False,
    resume: str | None = None,
    changed: bool = False,
    dry_run: bool = False,
    plain: bool = False,
    job: bool = False,
    yes: bool = False,
    discard_results: bool = False,
) -> None:
    """Fine-tune the model on your data, or --resume that."""
    from tasks.train.train import TrainOptions, train_fleet

    choices = TrainOptions(
        workers=workers,
        trial=trial,
        elastic=elastic,
        resume=resume,
        changed=changed,
        dry_run=dry_run,
        plain=plain,
        job=job,
        yes=yes,
        discard_results=discard_results,
    )
    train_fleet(context, choices)
