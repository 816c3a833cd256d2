"""The doctor's verb: signature and help. `inv --list` reads this file, so the work is imported when it runs."""

from invoke.context import Context
from invoke.tasks import task


@task(
    help={
        "only": "subjects, e.g. cluster,nodes (default: all); what is named is asked also where no setting needs it",
        "json": "one JSON document instead of lines",
        "document": "write docs/troubleshooting.md from the checks instead of running them",
    }
)
def doctor(context: Context, only: str | None = None, json: bool = False, document: bool = False) -> None:
    """Check everything at once; say what mends what is wrong."""
    from tasks.doctor.doctor import examine_all

    examine_all(context, only, as_json=json, document=document)
