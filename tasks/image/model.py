"""`inv model.*`: create the demo model, download models to this machine or the build VM."""

import subprocess
import sys
import time
from pathlib import Path

from invoke.context import Context

from bench.records.paths import DEMO_INPUTS
from bench.records.status import ExitCode
from bench.records.units import format_gb
from remote.hosts.command import Command, Secret
from remote.image import model_fetch, vm_jobs
from remote.image.model_fetch import Fetch
from remote.jobs.job import Agent
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients import secrets
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.errors import RetryableError, TaskFailed, UsageError, error_class, escape_controls
from tasks.image import build_profiles, jobs
from tasks.image.commands import FetchOptions
from tasks.settings.load import Settings, load
from tasks.settings.schema import Sections

DEMO_TIMEOUT_SEC = 1800.0
HERE = "models"  # for local workers, like the demo's
REAL_DEMO_MODEL, REAL_DEMO_DATA = DEMO_INPUTS[True]


def make_demo(context: Context, *, real: bool = False, dry_run: bool = False) -> CommandResult | None:
    settings, default = load(context), Sections()
    model, data = settings.model.path, settings.data.path
    if real:
        model = REAL_DEMO_MODEL if model == default.model.path else model
        data = REAL_DEMO_DATA if data == default.data.path else data
    if dry_run:
        targets = [settings.workspace / model, settings.workspace / data]
        lines = [f"{'keep' if path.exists() else 'create'}  {path}" for path in targets]
        return plan_result(lines, create=[str(path) for path in targets if not path.exists()])
    command = Command(
        argv=(
            *(sys.executable, "-m", "bench", "demo"),
            *("--model", str(settings.workspace / model)),
            *("--data", str(settings.workspace / data)),
            *(["--real"] if real else []),
        ),
        folder=str(settings.root),
    )
    try:
        completed = subprocess.run(
            command.argv, cwd=command.folder, stderr=subprocess.PIPE, timeout=DEMO_TIMEOUT_SEC, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TaskFailed(f"model.demo: not done after {DEMO_TIMEOUT_SEC:.0f} s: {command.render()}") from error
    stderr = completed.stderr.decode(errors="replace").strip()
    if completed.returncode in (ExitCode.BAD_INPUT, ExitCode.REFUSED):
        raise error_class(ExitCode(completed.returncode))(f"model.demo: {stderr}")
    if completed.returncode in (ExitCode.FAILED, ExitCode.RETRYABLE) and "\n" not in stderr:  # it could not write
        failure = RetryableError if completed.returncode == ExitCode.RETRYABLE else TaskFailed
        raise failure(f"model.demo: {stderr}", remedy="check owner, permissions and free space, then rerun the command")
    if completed.returncode != 0:
        raise TaskFailed(
            f"model.demo: exit {completed.returncode}: {command.render()}: {command.tail(stderr, lines=1)}"
        )
    if (model, data) != (settings.model.path, settings.data.path):
        print(f"to use them: INVOKE_MODEL_PATH={model} INVOKE_DATA_PATH={data} inv train; or `make demo-train`")
    return None


def fetch_models(context: Context, options: FetchOptions) -> CommandResult | None:
    settings = load(context)
    models = settings.image.models if options.model is None else (options.model,)
    if not models:
        raise UsageError(
            "image.models: empty", remedy="list models there, or name one: `inv model.fetch --model ORG/NAME`"
        )
    refuse_several("model.fetch", {"--cache": options.cache, "--cache-here": options.cache_here})
    refuse_several("model.fetch", {"--here": options.here, "--tmpdir": options.tmpdir})
    if options.cache is None and options.cache_here is None:
        secrets.check_hub_endpoint(settings)
    retry_command = format_command("model.fetch", **vars(options))
    with build_vm(settings, retry_command, here=options.here) as host:
        home, planned = str(settings.workspace / HERE), list[dict[str, str | None]]()
        if not options.here:
            tmp_folder = resolve_tmpdir(settings, host, options.tmpdir)
            vm_jobs.claim(host, tmp_folder, create=not options.dry_run)
            home = f"{vm_jobs.workdir_path(tmp_folder)}/models"
        for model in models:
            fetch = Fetch(
                model=model,
                folder=f"{home}/{model.replace('/', '--')}",
                revision=options.revision,
                endpoint=settings.hub.endpoint,
                index_url=secrets.checked_index_url(settings),
                cache=options.cache,
                cache_here=None if options.cache_here is None else Path(options.cache_here),
            )
            if options.dry_run:
                planned.append(
                    {"model": model, "revision": options.revision, "source": fetch.source, "folder": fetch.folder}
                )
            else:
                _fetch(settings, vm_jobs.create_agent(host), fetch, retry_command)
                if options.here:
                    print(f"to use it: `inv train --model={HERE}/{Path(fetch.folder).name}`", flush=True)
    if not options.dry_run:
        return None
    revision = options.revision or "existing revision, or main"
    lines = [f"{each['model']} ({revision}) from {each['source']} -> {each['folder']}" for each in planned]
    return plan_result(lines, models=planned)


def _fetch(settings: Settings, agent: Agent, fetch: Fetch, retry_command: str) -> None:
    started_at = time.monotonic()
    job = jobs.matching_job(agent, model_fetch.VERB, fetch.request, retry_command)
    if job is not None:
        print(f"{agent.host.name}: a download of {fetch.model} is running ({job.folder}); following it", flush=True)
    else:
        print(f"{fetch.model} from {fetch.source} -> {agent.host.name}:{fetch.folder}", flush=True)
        job = model_fetch.start(
            agent,
            fetch,
            token=_hub_token(settings, fetch),
            deadline_sec=settings.image.deadline_sec,
            client_lock=build_profiles.hub_client_lock(settings.root),
            on_progress=_UploadLines(),
        )
    facts = jobs.follow(settings, job, retry_command).facts
    fetched = facts["fetched_bytes"]
    transfer = f"{format_gb(fetched, 2)} of it downloaded now" if fetched else "already there; nothing was downloaded"
    size = f"{facts['files']} files, {format_gb(facts['bytes'], 2)}"
    print(
        f"{fetch.model} at {facts['revision']}: {size}, verified against {facts['verified_against']}; {transfer}; "
        f"{time.monotonic() - started_at:.1f} s",
        flush=True,
    )
    if without_digest := facts["without_digest"]:
        names = escape_controls(", ".join(without_digest[:5]))
        print(
            f"{len(without_digest)} of them had no digest in the cache, so only their sizes were compared when they "
            f"were copied: {names}{' ...' if len(without_digest) > 5 else ''}",
            flush=True,
        )


def _hub_token(settings: Settings, fetch: Fetch) -> Secret | None:
    if settings.hub.token_file is None or fetch.cache is not None or fetch.cache_here is not None:
        return None
    return secrets.read_secret(settings, "hub.token_file", settings.hub.token_file, in_header=True)


class _UploadLines:
    """Progress printer for uploading a local cache to the VM: one line every two seconds."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, sent_bytes: int, total_bytes: int) -> None:
        if time.monotonic() - self._printed_at > 2.0:
            self._printed_at = time.monotonic()
            print(f"sent {format_gb(sent_bytes, 2)}, {100 * sent_bytes // max(1, total_bytes)} %", flush=True)
