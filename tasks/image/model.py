"""`inv model.*`: the model and the data a bench reads."""

import dataclasses
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from invoke.context import Context

from remote.hosts.command import Command, Secret
from remote.image import model_fetch, vm_jobs, workdir
from remote.image.model_fetch import Fetch
from remote.jobs.agent import Agent
from remote.ssh.rsync import UploadProgress
from tasks.clients import secrets
from tasks.clients.build_vm import build_vm_job, tmpdir_on
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError
from tasks.image import jobs
from tasks.settings.load import Settings, load
from tasks.settings.schema import Sections

DEMO_DEADLINE_SEC = 1800.0
REAL_MODEL, REAL_DATA = "models/HuggingFaceTB--SmolLM2-135M-Instruct", "data/orders.jsonl"


def make_demo(context: Context, *, real: bool = False) -> None:
    settings, default = load(context), Sections()
    model, data = settings.model.path, settings.data.path
    if real:
        model = REAL_MODEL if model == default.model.path else model
        data = REAL_DATA if data == default.data.path else data
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
        ended = subprocess.run(
            command.argv, cwd=command.folder, stderr=subprocess.PIPE, timeout=DEMO_DEADLINE_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        raise TaskFailed(f"model.demo: not done after {DEMO_DEADLINE_SEC:.0f} s: {command.render()}") from None
    complaint = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == UsageError.exit_code:
        raise UsageError(f"model.demo: {complaint}")
    if ended.returncode == ConfirmationRequired.exit_code:
        raise ConfirmationRequired(f"model.demo: {complaint}")
    if ended.returncode != 0:
        raise TaskFailed(f"model.demo: exit {ended.returncode}: {command.render()}: {command.tail(complaint, lines=1)}")
    if (model, data) != (settings.model.path, settings.data.path):
        print(f"to use them: INVOKE_MODEL_PATH={model} INVOKE_DATA_PATH={data} inv train; or `make demo-train`")


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """The flags of `inv model.fetch` that say what is fetched, from where and to where; None where not given."""

    model: str | None
    revision: str | None
    tmpdir: str | None
    cache: str | None
    cache_here: str | None


def fetch_models(context: Context, given: FetchOptions, *, dry_run: bool) -> None:
    settings = load(context)
    models = settings.image.models if given.model is None else (given.model,)
    if not models:
        raise UsageError("image.models: empty; list models there, or name one: `inv model.fetch --model ORG/NAME`")
    if given.cache is not None and given.cache_here is not None:
        raise UsageError("--cache and --cache-here exclude each other; give one of them")
    if given.cache is None and given.cache_here is None:
        secrets.check_hub(settings)
    flags = {name.replace("_", "-"): value for name, value in dataclasses.asdict(given).items() if value}
    again = " ".join(["inv model.fetch", *(f"--{name} {value}" for name, value in flags.items())])
    with build_vm_job(settings, again) as host:
        tmp = tmpdir_on(settings, host, given.tmpdir)
        workdir.claim(host, tmp, make=not dry_run)
        home = f"{workdir.home_below(tmp)}/models"
        for model in models:
            wanted = Fetch(
                model=model,
                folder=f"{home}/{model.replace('/', '--')}",
                revision=given.revision,
                endpoint=settings.hub.endpoint,
                index_url=secrets.index_of(settings),
                cache=given.cache,
                cache_here=None if given.cache_here is None else Path(given.cache_here),
            )
            if dry_run:
                print(
                    f"{model} ({given.revision or 'as it is there, or main'}) from {wanted.source} -> {wanted.folder}"
                )
            else:
                _fetch(settings, vm_jobs.agent_on(host), wanted)


def _fetch(settings: Settings, agent: Agent, wanted: Fetch) -> None:
    began = time.monotonic()
    job = model_fetch.find(agent, wanted)
    if job is not None:
        print(f"{agent.host.name}: {wanted.model} is being fetched already ({job.folder}); following it", flush=True)
    else:
        print(f"{wanted.model} from {wanted.source} -> {agent.host.name}:{wanted.folder}", flush=True)
        job = model_fetch.start(
            agent,
            wanted,
            token=_token(settings, wanted),
            deadline_sec=settings.image.deadline_sec,
            on_progress=_SentLines(),
        )
    facts = jobs.follow(settings, job).facts
    fetched = facts["fetched_bytes"]
    how = f"{fetched / 1e9:.2f} GB of it came now" if fetched else "it was there already; nothing was fetched"
    print(
        f"{wanted.model} at {facts['revision']}: {facts['files']} files, {facts['bytes'] / 1e9:.2f} GB, all verified; "
        f"{how}; {time.monotonic() - began:.1f} s",
        flush=True,
    )


def _token(settings: Settings, wanted: Fetch) -> Secret | None:
    if settings.hub.token_file is None or wanted.cache is not None or wanted.cache_here is not None:
        return None
    return secrets.read(settings, "hub.token_file", settings.hub.token_file, in_header=True)


class _SentLines:
    """Prints a line every two seconds while a cache of this machine is sent to the VM."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def __call__(self, progress: UploadProgress) -> None:
        if time.monotonic() - self._shown > 2.0:
            self._shown = time.monotonic()
            share = "" if progress.percent is None else f", {progress.percent} %"
            print(f"sent {progress.byte_count / 1e9:.2f} GB{share}", flush=True)
