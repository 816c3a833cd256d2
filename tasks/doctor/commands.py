"""Doctor command: signature and help. `inv --list` imports this file; the command imports its work when it runs."""

from invoke.context import Context
from invoke.tasks import task


@task(
    help={
        "only": "subjects to check, e.g. cluster,nodes, even if no setting needs them (default: all)",
        "json": "print one JSON object",
        "document": "write docs/troubleshooting.md from the checks instead of running them",
    }
)
def doctor(context: Context, only: str | None = None, json: bool = False, document: bool = False) -> None:
    """Check the whole set-up and print a fix for each problem."""
    from tasks.doctor.doctor import run_doctor

    run_doctor(context, only, as_json=json, document=document)
