"""Python programs in forked children of a process that has their libraries already: seconds of imports less for each.

    with ForkServer(folder, INV) as server:
        server.inv("status", cwd=project, env={...})                     # CompletedProcess, as from subprocess.run
    with ForkServer(folder, BENCH) as server:
        server.start("-m", "bench", "run", ..., cwd=folder, env={...})   # a subprocess.Popen

What is started is a process of its own, with its own environment, folder, streams, signals and end. The project's own
modules are the server's where the project's sources are, file by file, those here; else they are imported anew.
torchrun and its ranks below a trial are forked from the process that starts them, so the tree of processes is that of
real starts. What this does not cover: the start of the interpreter and its end, the imports, the processes that draw a
report's figures, and a terminal. Tests of these, and of an `inv` that is killed, start the real program. A program ends
with the one who started it, and all with the server's own parent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from tests.support.paths import ROOT

START_SEC = 240.0
ASK_SEC = 30.0  # one who stops while it asks keeps the others waiting no longer
INV = (
    *("invoke.main", "pydantic", "yaml", "rich.live", "jinja2", "kubernetes.client", "fabric", "docker", "numpy"),
    *("pytest", "pandas", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("bench.records", "remote", "reports", "tasks"),  # with all that is below
)
BENCH = ("bench.torch_stack", "torch.distributed.run", "transformers.models.mistral.modeling_mistral", "bench")
AS_INV = "import sys; from tasks.cli.program import main; sys.argv[0] = 'inv'; sys.exit(main(sys.argv))"
OURS = ("bench", "remote", "reports", "tasks")
# Run by their name, or on hosts; or brings Oracle's SDK.
BY_HAND = ("bench.__main__", "remote.jobs.host_agent", "remote.image.vm_agent", "tasks.oci")
BELOW_A_TRIAL = "bench.workloads."  # torchrun and ranks, of trials and of trainings
# Of torchrun: this one has a `Popen` of its own; that one looks through the sources of all modules, only to log a name.
STARTS_RANKS = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
MEETS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
ROOM = 4096  # bytes of a command line that /proc shows


class ForkServer:
    """`start` starts the server itself, here or on another machine. `folder` holds the socket. `until` is the pid of
    the process that the server ends with; 0: the one that starts it."""

    def __init__(
        self,
        folder: Path,
        libraries: Sequence[str],
        start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
        until: int = 0,
    ) -> None:
        self.path, self._libraries, self._start, self._until = folder / "fork.socket", libraries, start, until

    def __enter__(self) -> ForkServer:
        words = ("-m", "tests.support.forked", str(self.path), str(self._until), *self._libraries, " " * ROOM)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        stdin = subprocess.DEVNULL if self._until else subprocess.PIPE
        self._process = self._start((sys.executable, *words), env=environment, stdin=stdin)
        deadline = time.monotonic() + START_SEC
        while not self.path.exists():
            assert self._process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline, f"the server is not there after {START_SEC:.0f} s"
            time.sleep(0.01)
        return self

    def leave(self) -> None:
        """Let it go on after this process, until the one it ends with does."""
        self._process.returncode = 0  # else its end would be missed here

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, *words: str, **options: Any) -> Forked:
        """What `python WORDS` would be; options as of subprocess.Popen."""
        return Forked(self.path, words, **options)

    def start_inv(self, *words: str, cwd: Path, env: Mapping[str, str], **streams: Any) -> Forked:
        """Type `inv` with these words in `cwd` and do not wait; it has a session of its own."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return self.start("-c", AS_INV, *words, cwd=cwd, env=env, text=True, start_new_session=True, **pipes)

    def inv(
        self, *words: str, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout_sec: float
    ) -> subprocess.CompletedProcess[str]:
        """Type `inv` with these words in `cwd` and wait for its end. Raises TimeoutExpired, having killed it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start("-c", AS_INV, *words, cwd=cwd, env=env, text=True, errors="replace", **pipes) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_sec)
            finally:
                process.kill()
        return subprocess.CompletedProcess(["inv", *words], process.returncode, out, err)


class Forked(subprocess.Popen[str]):
    """A program of a ForkServer: its pid is real, its end is told by the server, which is its parent."""

    def __init__(self, server: Path, words: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__((sys.executable, *words), **options)

    def _execute_child(self, *given: Any) -> None:
        asked = _asked(self, given)
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(str(self._server))
            request = json.dumps(
                {
                    "words": [os.fspath(word) for word in asked["args"][1:]],
                    "cwd": os.fspath(asked["cwd"] or os.getcwd()),
                    "env": dict(os.environ if asked["env"] is None else asked["env"]),
                    "session": asked["start_new_session"],
                }
            ).encode()
            socket.send_fds(self._connection, [len(request).to_bytes(4, "big")], _streams(asked))
            self._connection.sendall(request)
            self.pid = self._told()
            self._child_created = True
        finally:
            self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]

    def _told(self) -> int:
        said = self._connection.recv(4, socket.MSG_WAITALL)
        return int.from_bytes(said, "big") if said else signal.SIGKILL

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = self._told()
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _asked(process: subprocess.Popen[Any], given: tuple[Any, ...]) -> dict[str, Any]:
    """What Popen was asked for, by name."""
    return EXECUTE.bind(process, *given).arguments


def _streams(asked: Mapping[str, Any]) -> list[int]:
    ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
    return [number if end == -1 else end for number, end in enumerate(ends)]


def stand_in(server: str, module: str) -> NoReturn:
    """In a process whose work the server does: its words, streams, folder and environment, its signals, its end."""
    process = Forked(Path(server), ("-m", module, *sys.argv[1:]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: process.send_signal(received))
    code = process.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


STAND_IN = """import sys

sys.path.insert(0, {root!r})
from tests.support.forked import stand_in

stand_in({server!r}, "bench.real_main")
"""


def put_into(project: Path, server: ForkServer) -> None:
    """`python -m bench` of this copy of the project is done by the server."""
    main = project / "bench" / "__main__.py"
    main.rename(main.with_name("real_main.py"))
    main.write_text(STAND_IN.format(root=str(ROOT), server=str(server.path)))


# In the server -------------------------------------------------------------------------------------------------------


def serve(path: str, until: int, libraries: Sequence[str]) -> None:
    """Until that process ends; with 0, until standard input ends, which it does with the process that started this."""
    lives = os.pidfd_open(until) if until else 0
    _load(libraries)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    programs: dict[int, tuple[int, socket.socket]] = {}  # by what tells of the end: pid, and who asked for it
    while True:
        asked = [connection for _, connection in programs.values()]
        ready = set(select.select([listener, lives, *programs, *asked], [], [])[0])
        if lives in ready:
            return
        for ended, (program, connection) in list(programs.items()):
            if ready & {ended, connection}:
                _end(ended, program, connection)
                del programs[ended]
        if listener in ready:
            connection, _ = listener.accept()
            connection.settimeout(ASK_SEC)
            with contextlib.suppress(OSError, ValueError):  # who asked is gone
                program = _begin(connection)
                programs[os.pidfd_open(program)] = program, connection


def _load(libraries: Sequence[str]) -> None:
    for name in libraries:
        module = importlib.import_module(name)
        if name == "bench.torch_stack":
            module.load()
            # Compiled with the first model that a process loads: a thousand expressions, for every model there is.
            importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("mistral")
        elif name.partition(".")[0] in OURS:
            for below in pkgutil.walk_packages(module.__path__, f"{name}."):
                if not below.name.startswith(BY_HAND):
                    importlib.import_module(below.name)
    LOADED.extend(_ours())
    if settings := sys.modules.get("tasks.settings.sources"):  # it remembers what it has parsed
        settings._parse_yaml_text((ROOT / "invoke.yaml").read_text())


def _begin(connection: socket.socket) -> int:
    """Begin what is asked for, and tell its pid."""
    size, handles, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
    program = os.fork()
    if program == 0:
        die_with_parent()
        subprocess.Popen = BelowATrial  # type: ignore[misc]
        if STARTS_RANKS in sys.modules:
            sys.modules[STARTS_RANKS].Popen = BelowATrial  # type: ignore[attr-defined]
            sys.modules[MEETS].get_method_name = lambda *_: ""  # type: ignore[attr-defined]
        if renderer := sys.modules.get("reports.figures.renderer"):
            renderer.MAX_PROCESSES = 1  # a drawing process takes longer to import than to draw
        _become(request["words"], request["cwd"], request["env"], handles, session=request["session"])
    for handle in handles:
        os.close(handle)
    with contextlib.suppress(OSError):
        connection.sendall(program.to_bytes(4, "big"))
    return program


def _end(ended: int, program: int, connection: socket.socket) -> None:
    """Tell of its end; or end it, because the one who asked is gone."""
    if not select.select([ended], [], [], 0)[0]:
        os.kill(program, signal.SIGKILL)
    status = os.waitpid(program, 0)[1]
    os.close(ended)
    with connection, contextlib.suppress(OSError):
        connection.sendall(status.to_bytes(4, "big"))


class BelowATrial(subprocess.Popen[bytes]):
    """In a program of the server: torchrun and its ranks are forked; all else is started as ever."""

    def _execute_child(self, *given: Any) -> None:
        asked = _asked(self, given)
        words = [word for word in asked["args"] if word != "-u"] if isinstance(asked["args"], list | tuple) else []
        if words[:2] != [sys.executable, "-m"] or not words[2].startswith(BELOW_A_TRIAL):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(
                words[1:],
                asked["cwd"] or os.getcwd(),
                dict(os.environ if asked["env"] is None else asked["env"]),
                _streams(asked),
                session=asked["start_new_session"],
            )
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]


def _become(
    words: Sequence[str], cwd: str, environment: Mapping[str, str], handles: Sequence[int], *, session: bool
) -> NoReturn:
    """What `python WORDS` does, from its start to its end."""
    code = 1
    try:
        if session:
            os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        _show_as([sys.executable, *words])
        _forget("tests", *(() if _are_those_of(Path(cwd)) else OURS))
        sys.path[:] = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *LIBRARY_PATH]
        tempfile.tempdir = None
        if configuration := sys.modules.get("kubernetes.config.kube_config"):  # which reads it once, at the import
            configuration.KUBE_CONFIG_DEFAULT_LOCATION = environment.get("KUBECONFIG", "~/.kube/config")
        atexit._clear()
        code = _run(words)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - as the interpreter does with what nobody catches
        traceback.print_exception(error)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(words: Sequence[str]) -> int:
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            sys.argv = [words[1], *words[2:]]
            sys.modules.pop(words[1], None)  # else runpy warns
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _forget(*packages: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


class Ours(NamedTuple):
    """One of our modules as the server has it; paths are below ROOT."""

    name: str
    module: ModuleType
    path: Path
    state: tuple[int, int]
    constants: dict[str, Path]


LOADED: list[Ours] = []  # in the server


def _ours() -> list[Ours]:
    """Looked up once: for each program anew it took 20 ms of processor time."""
    return [
        Ours(name, module, path.relative_to(ROOT), _state(path), _below_root(module))
        for name, module in sys.modules.items()
        if name.partition(".")[0] in OURS
        for path in [Path(str(module.__file__))]
    ]


def _below_root(module: ModuleType) -> dict[str, Path]:
    paths = {name: value for name, value in vars(module).items() if isinstance(value, Path)}
    return {name: path.relative_to(ROOT) for name, path in paths.items() if path.is_relative_to(ROOT)}


def _are_those_of(project: Path) -> bool:
    """Whether our modules are of the same sources as this project's; from now on they say that they lie there."""
    there = [package for package in OURS if (project / package).is_dir()]  # the others are found here
    ours = [one for one in LOADED if one.path.parts[0] in there and sys.modules.get(one.name) is one.module]
    try:
        if any(_state(f"{project}/{our.path}") != our.state for our in ours):
            return False
    except OSError:
        return False
    for one in ours:
        one.module.__file__ = f"{project}/{one.path}"
        if hasattr(one.module, "__path__"):
            one.module.__path__ = [f"{project}/{one.path.parent}"]
        for constant, path in one.constants.items():
            setattr(one.module, constant, project / path)
    return True


def _state(path: Path | str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _show_as(argv: Sequence[str]) -> None:
    """Write a command line where /proc/PID/cmdline reads it, over the server's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = b"\0".join(os.fsencode(word) for word in argv)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    LIBRARY_PATH = [place for place in sys.path[1:] if place != str(ROOT)] + [str(ROOT)]  # the editable install's
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:-1])
