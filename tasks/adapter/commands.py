"""The verbs of an adapter: signatures and help. `inv --list` reads this file, so the work is imported when one runs."""

from invoke.context import Context
from invoke.tasks import task

YES = "do not ask before changing a cluster that looks like production"
RUN = "the training's run id (default: the newest training)"


@task(
    help={
        "run": RUN,
        "answers": "held-out prompts that every form answers, 0 to 1000",
        "json": "print what was found as JSON instead",
    }
)
def check(context: Context, run: str | None = None, answers: str = "8", json: bool = False) -> None:
    """Measure an adapter in each form that can be served."""
    from tasks.adapter.check import check_adapter

    check_adapter(context, run, answers=answers, as_json=json)


@task(
    help={
        "run": RUN,
        "base": "bf16: into the model as it is; nf4: into the model as NF4 held it during the training",
        "out": "the folder to make, as the worker sees it (default: RUN/merged in results.folder)",
        "anyway": "merge although the check was not made, or has found another loss than the training's",
    }
)
def merge(
    context: Context, run: str | None = None, base: str = "bf16", out: str | None = None, anyway: bool = False
) -> None:
    """Merge an adapter into a folder for plain transformers."""
    from tasks.adapter.merge import merge_adapter

    merge_adapter(context, run, base=base, out=out, anyway=anyway)


@task(
    help={
        "run": RUN,
        "merged": "the merged model instead of the adapter",
        "folder": "into this folder, in the layout of Hugging Face",
        "oci": "into a registry as an OCI artifact, HOST/REPOSITORY:TAG",
        "bucket": "into Oracle's Object Storage, oci://BUCKET@NAMESPACE/PREFIX",
    }
)
def push(
    context: Context,
    run: str | None = None,
    merged: bool = False,
    folder: str | None = None,
    oci: str | None = None,
    bucket: str | None = None,
) -> None:
    """Bring an adapter into a folder, registry or bucket."""
    from tasks.adapter.push import push_adapter

    push_adapter(context, run, folder=folder, oci=oci, bucket=bucket, merged=merged)


@task(
    default=True,
    help={
        "run": RUN,
        "dry-run": "print the plan and what would differ, and change nothing",
        "yes": YES,
        "discard-results": "go on though results in the pods were not collected; they are lost",
        "plain": "plain lines instead of the live table, also on a terminal",
    },
)
def start(
    context: Context,
    run: str | None = None,
    dry_run: bool = False,
    yes: bool = False,
    discard_results: bool = False,
    plain: bool = False,
) -> None:
    """Serve an adapter by vLLM, in the workers' place."""
    from tasks.adapter.serve import start_server

    start_server(context, run, dry_run=dry_run, yes=yes, discard_results=discard_results, plain=plain)


@task(help={"yes": YES})
def stop(context: Context, yes: bool = False) -> None:
    """Stop the server of `inv serve`, and delete its key."""
    from tasks.adapter.serve import stop_server

    stop_server(context, yes=yes)


SERVER = {
    "url": "where the server is, e.g. http://127.0.0.1:8000; cluster: the one of `inv serve`",
    "model": "which of its models (default: its only one)",
    "key-file": "file here, mode 0600, with the server's API key alone",
}


@task(name="check", positional=["url"], help={**SERVER, "run": RUN})
def served(
    context: Context, url: str, run: str | None = None, model: str | None = None, key_file: str | None = None
) -> None:
    """Ask a server what the training has answered."""
    from tasks.adapter.serve_check import check_served

    check_served(context, url, run, model=model, key_file=key_file)


@task(
    positional=["url"],
    help={
        **SERVER,
        "url": f"{SERVER['url']}; adapter: none, the adapter itself on the fleet's first worker",
        "run": f"with adapter: {RUN}",
    },
)
def chat(
    context: Context, url: str, run: str | None = None, model: str | None = None, key_file: str | None = None
) -> None:
    """Ask an adapter, or a server, what you type."""
    from tasks.adapter.chat import chat as ask

    ask(context, url, run, model=model, key_file=key_file)
