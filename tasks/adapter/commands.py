"""Adapter commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task

YES = "do not ask for confirmation if the cluster looks like production"
RUN = "run id of the training (default: the newest training)"


@task(
    help={
        "run": RUN,
        "answers": "number of held-out prompts that every form answers, 0 to 1000 (default: 8)",
        "json": "print the result as JSON",
    }
)
def check(context: Context, run: str | None = None, answers: str = "8", json: bool = False) -> None:
    """Measure an adapter in each form that can be served."""
    from tasks.adapter.check import check_adapter

    check_adapter(context, run, answers=answers, as_json=json)


@task(
    help={
        "run": RUN,
        "base": "bf16: merge into the original weights (default); nf4: into the weights as quantized during training",
        "out": "folder to create, as the worker sees it (default: RUN/merged in results.folder)",
        "force": "merge without a check, or if the check found another loss than the training",
    }
)
def merge(
    context: Context, run: str | None = None, base: str = "bf16", out: str | None = None, force: bool = False
) -> None:
    """Merge an adapter and its base into one model folder."""
    from tasks.adapter.merge import merge_adapter

    merge_adapter(context, run, base=base, out=out, force=force)


@task(
    help={
        "run": RUN,
        "merged": "push the merged model instead of the adapter",
        "folder": "target folder, in the layout of Hugging Face",
        "oci": "target registry, as an OCI artifact: HOST/REPOSITORY:TAG",
        "bucket": "target in Oracle Object Storage: oci://BUCKET@NAMESPACE/PREFIX",
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
    """Copy an adapter to a folder, registry or bucket."""
    from tasks.adapter.push import push_adapter

    push_adapter(context, run, folder=folder, oci=oci, bucket=bucket, merged=merged)


@task(
    default=True,
    help={
        "run": RUN,
        "merged": "serve the merged model of `inv adapter.merge`, without quantization",
        "dry-run": "print the plan and the differences, and change nothing",
        "yes": YES,
        "discard-results": "continue if results in the pods have not been collected; they are lost",
        "plain": "plain lines instead of the live display, also on a terminal",
    },
)
def start(
    context: Context,
    run: str | None = None,
    merged: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    discard_results: bool = False,
    plain: bool = False,
) -> None:
    """Serve an adapter with vLLM instead of the workers."""
    from tasks.adapter.serve import start_server

    start_server(context, run, merged=merged, dry_run=dry_run, yes=yes, discard_results=discard_results, plain=plain)


@task(help={"yes": YES})
def stop(context: Context, yes: bool = False) -> None:
    """Stop the server of `inv serve` and delete its API key."""
    from tasks.adapter.serve import stop_server

    stop_server(context, yes=yes)


SERVER = {
    "url": "address of the server, e.g. http://127.0.0.1:8000; cluster: the server of `inv serve`",
    "model": "model name on the server (default: its only model)",
    "key-file": "local file, mode 0600, with only the API key of the server",
}


@task(name="check", positional=["url"], help={**SERVER, "run": RUN})
def served(
    context: Context, url: str, run: str | None = None, model: str | None = None, key_file: str | None = None
) -> None:
    """Compare a server's answers with those of the training."""
    from tasks.adapter.serve_check import check_served

    check_served(context, url, run, model=model, key_file=key_file)


@task(
    positional=["url"],
    help={
        **SERVER,
        "url": f"{SERVER['url']}; adapter: no server, the adapter on the first worker",
        "run": f"with adapter: {RUN}",
    },
)
def chat(
    context: Context, url: str, run: str | None = None, model: str | None = None, key_file: str | None = None
) -> None:
    """Chat with an adapter or a server."""
    from tasks.adapter.chat import chat as ask

    ask(context, url, run, model=model, key_file=key_file)
