"""Random scenarios of `inv deploy`, `bench` and `collect`: one command at a time under faults or signals, with checks
that hold for every command. Without faults, the same commands must then succeed.

    with running(folder) as target:
        run_scenario(target, seed=7, steps=20)
        target.finish()

Real kubectl against the tests' own cluster, the project's own manifests, trials that compute nothing.

Not covered: a real container runtime, a real network between nodes, trials with torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.paths import LEDGER_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.pods.host import PodsSection
from remote.hosts.pods.pod_index import PodIndex
from tests.chaos.fault_injector import TRIALS, FaultInjector
from tests.support.forked import INV_CODE, INV_LIBRARIES, ForkServer
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.hosts.local_fleet import mounted_tmpfs, wait_for
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import EVICTION_SCALE, PodFleet
from tests.support.small_inputs import write_data, write_model

PODS = 2
MAY_BE_LOST = (
    TrialStatus.SUCCEEDED,
    TrialStatus.LOST,
    TrialStatus.PREEMPTED,
    TrialStatus.CANCELLED,
)  # no injected fault is a trial's own
IMAGE = f"fra.ocir.io/ns/fleet@sha256:{'ab' * 32}"
CODES = (0, 1, 2, 3, 4, 130)
TIMEOUT_SEC = 600.0  # limit of one command under faults; its own timeouts are far shorter
MAX_MEMORY_BYTES = 500_000_000  # includes libraries that a forked command shares with its parent
KILLS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
MAX_TRIES = 6  # tries of a resumed command without faults


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """A finished command. `killed` is the signal that it was sent, or None."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str
    killed: signal.Signals | None
    peak_bytes: int

    def __str__(self) -> str:
        last = (self.err.strip() or self.out.strip()).splitlines()[-1:]
        return f"inv {' '.join(self.command)}: {self.code} {''.join(last)[:300]}"


class PodsTarget:
    """A project, and a cluster to deploy it to. Use `running`."""

    def __init__(self, folder: Path, pods: PodFleet, server: ForkServer) -> None:
        self.folder, self.project, self.pods, self._server = folder, folder / "project", pods, server
        self._digests: dict[Path, str] = {}  # digests of collected results
        self._ledgers: dict[Path, bytes] = {}

    def next_command(self, chooser: random.Random) -> tuple[str, ...]:
        runs = list(self._runs())
        if chooser.random() < 0.2:
            self._set(memory=f"{chooser.randrange(64, 80)}Mi")
            return ("deploy",)
        if runs and chooser.random() < 0.3:
            return ("collect",)
        if runs and chooser.random() < 0.5:
            return ("bench", "--resume")
        return ("bench", "--quick", "--only=baseline", f"--repeats={chooser.randrange(1, 4)}")

    def start(self, command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
        environment = {**clean, "HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp")}
        with out.open("w") as to, err.open("w") as complaints:
            return self._server.start(
                *("-c", INV_CODE, "-f", "walk.json", *command),
                cwd=self.project,
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=complaints,
            )

    @contextlib.contextmanager
    def injecting_faults(self, chooser: random.Random) -> Iterator[Callable[[], str]]:
        with FaultInjector(self.pods, chooser.randrange(10**9), count=chooser.randrange(4)) as injector:
            yield injector.describe

    def check(self, done: CommandResult) -> None:
        self._check_ledgers()
        names = [flag.partition("=")[2] for flag in done.command if flag.startswith(("--resume=", "--run="))]
        run = self.project / "results" / names[0] if names else self._newest()
        if done.code == 0 and done.command[0] == "bench":
            self._check_all_succeeded(run)
        elif done.code == 1 and done.command[0] == "bench":
            ends = [entry.status for entry in Ledger(run / LEDGER_FILE).entries.values()]
            assert None not in ends, "exit 1, and a trial has no end"
            assert set(ends) != {TrialStatus.SUCCEEDED}, "exit 1, and every trial succeeded"
        elif done.code == 0 and done.command[0] == "collect":
            self._check_collected(run)

    def finish(self) -> None:
        """Finish interrupted work after any number of steps. Raises AssertionError if it does not succeed."""
        if len([pod for pod in self.pods.live() if pod["ready"]]) < PODS:
            self._run_until_success("deploy")  # an interrupted deployment may have left no Job
        self.pods.wait_ready()
        if not any(self._runs()):  # nothing began in pods that cannot run anything
            self._run_until_success("bench", "--quick", "--only=baseline")
        for run in self._runs():
            ledger = Ledger(run / LEDGER_FILE)
            if any(entry.status is not TrialStatus.SUCCEEDED for entry in ledger.entries.values()):
                self._run_until_success("bench", f"--resume={run.name}")
            self._check_all_succeeded(run)
        for run in self._runs():
            self._run_until_success("collect", f"--run={run.name}")
        self._run_until_success("deploy")
        self.pods.wait_ready()
        wait_for(lambda: not self._running_trials(), "no trial is left running in a pod")
        ours = f"kubectl.*{self.pods.cluster.kubeconfig}"
        left = subprocess.run(["pgrep", "-f", "-a", ours], capture_output=True, text=True, check=False).stdout
        assert not left, f"kubectl is left running: {left}"

    def _run_until_success(self, *command: str) -> CommandResult:
        """Run a command until it succeeds: leftovers of a killed one may still block it. Asserts that it does."""
        for _ in range(MAX_TRIES):
            done = run_command(self, command)
            print(f"   {done}", flush=True)
            with with_output(done):
                self.check(done)
            if done.code == 0:
                return done
            assert done.code in (1, 3), f"{done}\n{done.err}\nrefused without a reason"
            time.sleep(1.0)
        raise AssertionError(f"{done}\n{done.out}\n{done.err}\nno success after {MAX_TRIES} tries without faults")

    def _set(self, **cluster: str) -> None:
        path = self.project / "walk.json"
        settings = json.loads(path.read_text())
        settings["cluster"] |= cluster
        path.write_text(json.dumps(settings))

    def _runs(self) -> Iterator[Path]:
        ledgers = self.project.glob(f"results/*/{LEDGER_FILE}")
        return iter(sorted({path.parent for path in ledgers if not path.parent.is_symlink()}))

    def _newest(self) -> Path:
        return (self.project / "results" / "latest").resolve()

    def _check_ledgers(self) -> None:
        """Check that ledgers only grow, that every status is explained by a fault, and that collected results are
        unchanged."""
        for run in self._runs():
            content = (run / LEDGER_FILE).read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            assert whole.startswith(self._ledgers.get(run, b"")), f"{run}: lines of the ledger are gone"
            self._ledgers[run] = whole
            for trial_id, entry in Ledger(run / LEDGER_FILE).entries.items():
                assert entry.status in (None, *MAY_BE_LOST), f"{trial_id}: {entry.status}: {entry.reason}"
                if entry.status is TrialStatus.SUCCEEDED:
                    path = run / "trials" / trial_id / RESULT_FILE
                    assert entry.winner is not None
                    result = TrialResult.read(path)
                    assert (result.status, result.attempt) == (TrialStatus.SUCCEEDED, entry.winner.number)
                    assert (result.trial_id, result.run_id) == (trial_id, run.name)
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    assert self._digests.setdefault(path, digest) == digest, f"{path} was changed"

    def _check_all_succeeded(self, run: Path) -> None:
        ends = {trial_id: entry.status for trial_id, entry in Ledger(run / LEDGER_FILE).entries.items()}
        assert set(ends.values()) == {TrialStatus.SUCCEEDED}, ends

    def _check_collected(self, run: Path) -> None:
        done = subprocess.run(
            ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=run, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _running_trials(self) -> list[str]:
        """Return the command lines of trials and their supervisors in the pods."""
        problems = []
        for pod in self.pods.live():
            with contextlib.suppress(RuntimeError):  # the pod was deleted meanwhile
                lines = map(str, self.pods.cluster.processes(str(pod["name"])).values())
                problems += [line for line in lines if any(word in line for word in TRIALS)]
        return problems


@contextlib.contextmanager
def running(folder: Path) -> Iterator[PodsTarget]:
    """Run the cluster, deployed once, for the block."""
    folder.chmod(0o755)
    project = folder / "project"
    project.mkdir()
    (folder / "tmp").mkdir()
    for name in ("invoke.yaml", "tasks.py"):
        shutil.copy(ROOT / name, project)
    for name in ("tasks", "remote", "reports", "manifests"):
        (project / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "bench", project / "bench")
    install_fake_training(project)
    model = write_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    data = write_data(folder / "chats.jsonl")
    image = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    with (
        Cluster(nodes=PODS, image_paths=[folder], image_environment=image, toleration_scale=EVICTION_SCALE) as cluster,
        ForkServer(folder, INV_LIBRARIES) as server,
        contextlib.ExitStack() as own,
    ):
        volume = cluster.claim_folder("shared")
        volume.parent.mkdir(parents=True)
        own.enter_context(mounted_tmpfs(volume, "64m")).chmod(0o777)
        settings = {
            "fleet": {
                "kind": "pods",
                "size": PODS,
                "workspace": str(project),
                "max_attempts": 10,
                "lost_after_sec": 21,
                "reconnect_timeout_sec": 180,
                "login_timeout_sec": 60,
                "pods": {"python": sys.executable, "threads": 1},
            },
            "bench": {"warmup_steps": 1, "measured_steps": 3},
            "model": {"path": str(model)},
            "data": {"path": str(data)},
            "cluster": {
                "kubeconfig": str(cluster.kubeconfig),
                "namespace": "default",
                "image": IMAGE,
                "pull_secret": None,
                "cpu": "100m",
                "memory": "64Mi",
                "shm": "16Mi",
                "scratch": "64Mi",
                "ready_timeout_sec": 90,
                "volume": {"handle": "ocid1.filesystem:10.0.0.1:/export"},
            },
        }
        (project / "walk.json").write_text(json.dumps(settings))
        pods = PodFleet(folder, cluster, PODS)
        pods.outputs.mkdir()
        own_pods = PodsSection()
        pods.label = Path(own_pods.scratch).name  # another operator's trials take the same slots
        pods.pods = PodIndex(pods.pods.kubectl, own_pods.selector)
        world = PodsTarget(folder, pods, server)
        done = run_command(world, ["deploy"])
        assert done.code == 0, f"{done}\n{done.err}"
        yield world


def run_scenario(target: PodsTarget, seed: int, steps: int) -> None:
    """Run this many steps. Raises AssertionError with the command at the first broken invariant."""
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    for number in range(1, steps + 1):
        command = target.next_command(rng)
        kill = rng.choice(KILLS) if rng.random() < 0.25 else None
        began = time.monotonic()
        with target.injecting_faults(rng) as fallen:
            done = run_command(target, command, kill=kill, after_sec=rng.uniform(0.2, 10.0))
        print(f"{number}. {done} [{time.monotonic() - began:.0f} s; {fallen() or 'no fault'}]", flush=True)
        with with_output(done):
            target.check(done)


def run_command(
    target: PodsTarget, command: Sequence[str], *, kill: signal.Signals | None = None, after_sec: float = 0.0
) -> CommandResult:
    """Run a command, kill it if asked to, and assert what holds for every command."""
    streams = target.folder / "out.txt", target.folder / "err.txt"
    process = target.start(command, *streams)
    began, peak, sent = time.monotonic(), 0, None
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration, IndexError):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]))
        elapsed_sec = time.monotonic() - began
        if kill is not None and sent is None and elapsed_sec > after_sec:
            process.send_signal(sent := kill)
        if elapsed_sec > TIMEOUT_SEC:
            process.kill()
            raise AssertionError(f"inv {' '.join(command)}: no end after {TIMEOUT_SEC:.0f} s\n{streams[1].read_text()}")
        time.sleep(0.05)
    out, err = (stream.read_text(errors="replace") for stream in streams)
    done = CommandResult(command=tuple(command), code=process.wait(), out=out, err=err, killed=sent, peak_bytes=peak)
    with with_output(done):
        assert "Traceback" not in out + err
        assert done.code in CODES or (sent is not None and done.code == -sent), "unexpected exit code"
        assert done.code != 130 or sent is not None, "exit 130 without an interrupt"
        assert done.code in (0, 1, 130) or done.code < 0 or err.strip(), "no message"
        assert peak < MAX_MEMORY_BYTES, f"{peak:,} bytes of memory"
    return done


@contextlib.contextmanager
def with_output(done: CommandResult) -> Iterator[None]:
    """Add the command and its output to an AssertionError."""
    try:
        yield
    except AssertionError as untrue:
        raise AssertionError(f"{done}\n{done.out}\n{done.err}\nfailed: {untrue}") from untrue
