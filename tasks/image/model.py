"""`inv model.*`: create the demo model, download models to this machine or the build VM."""

import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from invoke.context import Context

from bench.records.paths import DEMO_INPUTS
from bench.records.status import ExitCode
from bench.records.units import format_gb
from remote.hosts.command import Secret
from remote.hosts.host_protocol import CommandTimedOut, Host
from remote.hosts.local_program import run_program
from remote.image import vm_jobs
from remote.jobs.job import Agent
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.cli.waiting import Wait
from tasks.clients import secrets
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.errors import TaskFailed, UsageError, error_class, escape_controls, translate_errors
from tasks.image import build_profiles, vm_work
from tasks.image.commands import FetchOptions
from tasks.settings.layers import Settings, load
from tasks.settings.sections import Sections

DEMO_TIMEOUT_SEC = 1800.0
HERE = "models"  # for local workers, like the demo's
REAL_DEMO_MODEL, REAL_DEMO_DATA = DEMO_INPUTS[True]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")


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
    paths = ("--model", str(settings.workspace / model), "--data", str(settings.workspace / data))
    argv = (sys.executable, "-m", "bench", "demo", *paths, *(["--real"] if real else []))
    with Wait(f"model.demo: making {model}"), translate_errors(TaskFailed, CommandTimedOut, prefix="model.demo: "):
        completed = run_program(argv, label="bench demo", folder=str(settings.root), timeout_sec=DEMO_TIMEOUT_SEC)
    print(completed.stdout.decode(errors="replace"), end="")
    if completed.exit_code != 0:
        code = ExitCode(completed.exit_code) if completed.exit_code in list(ExitCode) else ExitCode.FAILED
        last = completed.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        problem = last or f"exit {completed.exit_code}"
        remedy = "check owner, permissions and free space, then rerun the command"
        raise error_class(code)(
            f"model.demo: {problem}", remedy=remedy if code in (ExitCode.FAILED, ExitCode.RETRYABLE) else ""
        )
    if (model, data) != (settings.model.path, settings.data.path):
        print(f"to use them: INVOKE_MODEL_PATH={model} INVOKE_DATA_PATH={data} inv train; or `make demo-train`")
    return None


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Request for one model in `folder` on the VM. `revision` None means the one in the folder, or else main's commit.

    `cache` is a Hugging Face cache on the VM; without it the source is the hub.
    """

    model: str
    folder: str
    revision: str | None = None
    endpoint: str | None = None
    index_url: str | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.model) or ".." in self.model:
            raise UsageError(f"{self.model!r} is not a model name", remedy="expected ORGANISATION/NAME")
        if self.revision is not None and (not _REVISION.match(self.revision) or ".." in self.revision):
            raise UsageError(f"{self.revision!r} is not a revision", remedy="expected a commit, tag or branch")

    @property
    def source(self) -> str:
        return self.cache or self.endpoint or "https://huggingface.co"


def fetch_models(context: Context, options: FetchOptions) -> CommandResult | None:
    settings = load(context)
    models = settings.image.models if options.model is None else (options.model,)
    if not models:
        raise UsageError(
            "image.models: empty", remedy="list models there, or name one: `inv model.fetch --model ORG/NAME`"
        )
    refuse_several("model.fetch", {"--here": options.here, "--tmpdir": options.tmpdir})
    if options.cache is None:
        secrets.check_hub_endpoint(settings)
    command = format_command("model.fetch", **vars(options))
    with build_vm(settings, command, here=options.here) as host:
        home = str(settings.workspace / HERE)
        if not options.here:
            workdir = vm_jobs.workdir_path(resolve_tmpdir(settings, host, options.tmpdir))
            vm_jobs.claim(host, workdir, create=not options.dry_run)
            home = f"{workdir}/models"
        fetches = [
            Fetch(
                model=model,
                folder=f"{home}/{model.replace('/', '--')}",
                revision=options.revision,
                endpoint=settings.hub.endpoint,
                index_url=secrets.checked_index_url(settings),
                cache=options.cache,
            )
            for model in models
        ]
        if options.dry_run:
            revision = options.revision or "existing revision, or main"
            lines = [f"{fetch.model} ({revision}) from {fetch.source} -> {fetch.folder}" for fetch in fetches]
            names = ("model", "revision", "source", "folder")
            return plan_result(lines, models=[{name: getattr(fetch, name) for name in names} for fetch in fetches])
        for fetch in fetches:
            _fetch(settings, host, fetch, command)
            if options.here:
                print(f"to use it: `inv train --model={HERE}/{Path(fetch.folder).name}`", flush=True)
    return None


def _fetch(settings: Settings, host: Host, fetch: Fetch, command: str) -> None:
    started_at, token_file = time.monotonic(), settings.hub.token_file if fetch.cache is None else None
    client = {"token": token_file is not None, "client_lock": build_profiles.hub_client_lock(settings.root)}
    work = vm_work.plan_work(settings, command, "fetch", fetch.model, {**asdict(fetch), **client})

    def prepare(_: Agent) -> Secret | None:
        print(f"{fetch.model} from {fetch.source} -> {host.name}:{fetch.folder}", flush=True)
        if token_file is None:
            return None
        return secrets.read_secret(settings, "hub.token_file", token_file, in_header=True)

    facts = vm_work.run(host, work, prepare).facts
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
