"""`inv model.*`: the model and the data a bench reads."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import Interrupted, TaskFailed, UsageError

if TYPE_CHECKING:
    from remote.hosts.command import Secret
    from remote.image.modelfetch import Fetch
    from remote.jobs.agent import Agent
    from remote.ssh.bulk import Progress
    from tasks.settings.load import Settings

DEMO_DEADLINE_SEC = 1800.0


@task
def demo(context: Context) -> None:
    """Make the small demo model and its data set, once."""
    from remote.hosts.command import Command
    from tasks.settings import load as house

    settings = house.load(context)
    command = Command(
        argv=(
            *(sys.executable, "-m", "bench", "demo"),
            *("--model", str(settings.workspace / settings.model.path)),
            *("--data", str(settings.workspace / settings.data.path)),
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
    if ended.returncode != 0:
        raise TaskFailed(f"model.demo: exit {ended.returncode}: {command.render()}: {command.tail(complaint, lines=1)}")


@task(
    help={
        "model": "ORGANISATION/NAME of one model (default: all of image.models)",
        "revision": "commit, tag or branch (default: the one that is there, or else what main is now)",
        "tmpdir": "folder on the VM that models are kept below, e.g. /mnt/fss (default: build.tmpdir)",
        "cache": "take it from this Hugging Face cache on the VM instead of the hub",
        "cache-here": "take it from this Hugging Face cache on this machine instead of the hub",
        "dry-run": "print what would be fetched, and touch nothing",
    }
)
def fetch(
    context: Context,
    model: str | None = None,
    revision: str | None = None,
    tmpdir: str | None = None,
    cache: str | None = None,
    cache_here: str | None = None,
    dry_run: bool = False,
) -> None:
    """Bring models to the build VM, every file verified."""
    from remote.image import vmjob
    from tasks.connect.buildvm import build_vm, tmpdir_on
    from tasks.settings import load as house

    settings = house.load(context)
    models = settings.image.models if model is None else (model,)
    if not models:
        raise UsageError("image.models: empty; list models there, or name one: `inv model.fetch --model ORG/NAME`")
    if cache is not None and cache_here is not None:
        raise UsageError("--cache and --cache-here: one of them, please")
    given = {"model": model, "revision": revision, "tmpdir": tmpdir, "cache": cache, "cache-here": cache_here}
    again = " ".join(["inv model.fetch", *(f"--{name} {value}" for name, value in given.items() if value)])
    try:
        with build_vm(settings, again) as host:
            home = f"{tmpdir_on(settings, host, tmpdir)}/qlora-fleet/models"
            wanted = [_fetch_of(settings, one, revision, home, cache, cache_here) for one in models]
            for one in wanted:
                if dry_run:
                    print(
                        f"{one.model} ({one.revision or 'as it is there, or main'}) from {one.source} -> {one.folder}"
                    )
                else:
                    _fetch(settings, vmjob.agent_on(host), one)
    except KeyboardInterrupt:
        raise Interrupted(f"left; what runs on the VM goes on: `{again}` goes back to it") from None


def _fetch_of(
    settings: Settings, model: str, revision: str | None, home: str, cache: str | None, cache_here: str | None
) -> Fetch:
    from remote.image.modelfetch import Fetch

    return Fetch(
        model=model,
        folder=f"{home}/{model.replace('/', '--')}",
        revision=revision,
        endpoint=settings.hub.endpoint,
        index_url=settings.image.index_url,
        cache=cache,
        cache_here=None if cache_here is None else Path(cache_here),
    )


def _fetch(settings: Settings, agent: Agent, wanted: Fetch) -> None:
    from remote.image import modelfetch, vmjob
    from tasks.connect.buildvm import show_cut, show_line

    began = time.monotonic()
    job = modelfetch.find(agent, wanted)
    if job is not None:
        print(f"{agent.host.name}: {wanted.model} is being fetched already ({job.folder}); following it", flush=True)
    else:
        print(f"{wanted.model} from {wanted.source} -> {agent.host.name}:{wanted.folder}", flush=True)
        job = modelfetch.start(
            agent,
            wanted,
            token=_token(settings, wanted),
            deadline_sec=settings.image.deadline_sec,
            on_progress=_Brought(),
        )
    facts = vmjob.follow(job, show_line, show_cut).facts
    fetched = facts["fetched_bytes"]
    how = f"{fetched / 1e9:.2f} GB of it came now" if fetched else "it was there, and nothing was fetched"
    print(
        f"{wanted.model} at {facts['revision']}: {facts['files']} files, {facts['bytes'] / 1e9:.2f} GB, all verified; "
        f"{how}; {time.monotonic() - began:.1f} s",
        flush=True,
    )


def _token(settings: Settings, wanted: Fetch) -> Secret | None:
    from remote.hosts.command import Secret
    from tasks.connect import secrets as secretfile

    if settings.hub.token_file is None or wanted.cache is not None or wanted.cache_here is not None:
        return None
    return Secret(secretfile.read(settings, "hub.token_file", settings.hub.token_file))


class _Brought:
    """A line every two seconds while a cache of this machine goes to the VM."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._shown > 2.0:
            self._shown = time.monotonic()
            share = "" if progress.percent is None else f", {progress.percent} %"
            print(f"sent {progress.byte_count / 1e9:.2f} GB{share}", flush=True)
