"""Python programs in forked children of a server that has imported their libraries: saves seconds per start.

    with ForkServer(folder, INV) as server:
        server.inv("status", cwd=project, env={...})                     # CompletedProcess, as from subprocess.run
    with ForkServer(folder, BENCH) as server:
        server.start("-m", "bench", "run", ..., cwd=folder, env={...})   # a subprocess.Popen

A program is a separate process with its own environment, folder, streams, signals and exit code. It uses the server's
copy of the project's modules if the project's sources are identical to those here; otherwise it imports them again.
The ranks of a trial are forked from the process that starts them, so the process tree is that of real starts. Not
covered: start and exit of the interpreter, the imports, the processes that draw a report's figures, and a terminal.
Tests of these, and of an `inv` that is killed, start the real program. A program dies with the process that started it,
and all programs die with the server's own parent.
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
from typing import Any, NoReturn

from tests.support.paths import ROOT

START_SEC = 240.0
REQUEST_TIMEOUT_SEC = 30.0  # a client that stops during its request blocks the others no longer
INV_LIBRARIES = (
    *("invoke.main", "yaml", "rich.live", "jinja2", "kubernetes.client", "fabric", "numpy"),
    *("pytest", "pandas", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("bench.records", "remote", "reports", "tasks"),  # including their submodules
)
BENCH_LIBRARIES = ("bench.torch_stack", "transformers.models.mistral.modeling_mistral", "bench")
INV_CODE = "import sys; from tasks.cli.program import main; sys.argv[0] = 'inv'; sys.exit(main(sys.argv))"
PACKAGES = ("bench", "remote", "reports", "tasks")
# Run as __main__ or on hosts, or importing Oracle's SDK or Triton.
NOT_PRELOADED = (
    *("bench.__main__", "remote.agent.jobs", "remote.agent.build_vm", "remote.agent.pods", "remote.agent.scripts"),
    *("tasks.oci", "bench.kernels.ahead", "bench.kernels.cache"),
)
RANK_MODULES = "bench.workloads."  # prefix of the modules that are ranks
ARGV_BYTES = 4096  # space for a command line in /proc/PID/cmdline


class ForkServer:
    """Server process and its client, a context manager.

    `start` starts the server, here or on another machine. `folder` holds the socket. The server ends with the process
    whose pid is `until`; 0: with the process that starts it.
    """

    def __init__(
        self,
        folder: Path,
        libraries: Sequence[str],
        start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
        until: int = 0,
    ) -> None:
        self.path, self._libraries, self._start, self._until = folder / "fork.socket", libraries, start, until

    def __enter__(self) -> ForkServer:
        arguments = ("-m", "tests.support.forked", str(self.path), str(self._until), *self._libraries, " " * ARGV_BYTES)
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        stdin = subprocess.DEVNULL if self._until else subprocess.PIPE
        self._process = self._start((sys.executable, *arguments), env=environment, stdin=stdin)
        deadline = time.monotonic() + START_SEC
        while not self.path.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()  # closes its pipe
                raise AssertionError(f"the server ended, or did not start within {START_SEC:.0f} s")
            time.sleep(0.01)
        return self

    def detach(self) -> None:
        """Let the server continue after this process, until the process `until` ends."""
        self._process.returncode = 0  # otherwise Popen warns about a running child

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, *arguments: str, **options: Any) -> ForkedProcess:
        """Start `python ARGUMENTS`; options as for subprocess.Popen."""
        return ForkedProcess(self.path, arguments, **options)

    def start_inv(self, *arguments: str, **options: Any) -> ForkedProcess:
        """Start `inv ARGUMENTS` in a new session, without waiting for it; `options` are `cwd`, `env` and others."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.start("-c", INV_CODE, *arguments, **{"text": True, "start_new_session": True, **pipes, **options})

    def inv(
        self, *arguments: str, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout_sec: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `inv ARGUMENTS` in `cwd`. Kills it and raises TimeoutExpired after `timeout_sec`."""
        options = {"stdin": subprocess.PIPE, "start_new_session": False, "errors": "replace"}
        with self.start_inv(*arguments, cwd=cwd, env=env, **options) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_sec)
            finally:
                process.kill()
        return subprocess.CompletedProcess(["inv", *arguments], process.returncode, out, err)


class ForkedProcess(subprocess.Popen[str]):
    """Program of a ForkServer: its pid is real; the server, its parent, reports its exit status."""

    def __init__(self, server: Path, arguments: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__((sys.executable, *arguments), **options)

    def _execute_child(self, *popen_arguments: Any) -> None:
        options = dict(zip(_NAMES, popen_arguments, strict=True))
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(str(self._server))
            request = json.dumps(
                {
                    "arguments": [os.fspath(argument) for argument in options["args"][1:]],
                    "cwd": os.fspath(options["cwd"] or os.getcwd()),
                    "env": dict(os.environ if options["env"] is None else options["env"]),
                    "session": options["start_new_session"],
                }
            ).encode()
            socket.send_fds(self._connection, [len(request).to_bytes(4, "big")], _streams(options))
            self._connection.sendall(request)
            self.pid = self._read_number()
            self._child_created = True
        finally:
            self._close_pipe_fds(*(options[name] for name in PIPES))  # type: ignore[attr-defined]

    def _read_number(self) -> int:
        message = self._connection.recv(4, socket.MSG_WAITALL)
        return int.from_bytes(message, "big") if message else signal.SIGKILL

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = self._read_number()
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_NAMES = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


def _streams(options: Mapping[str, Any]) -> list[int]:
    handles = (options["p2cread"], options["c2pwrite"], options["errwrite"])
    return [number if handle == -1 else handle for number, handle in enumerate(handles)]


def run_in_server(server: str, *program: str) -> NoReturn:
    """Run `python PROGRAM` in the server instead of this process; forward arguments, streams, signals and status."""
    process = ForkedProcess(Path(server), (*program, *sys.argv[1:]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: process.send_signal(received))
    code = process.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


MAIN_TEMPLATE = """import sys

sys.path.insert(0, {root!r})
from tests.support.forked import run_in_server

run_in_server({server!r}, *{program!r})
"""


def install_forked_bench(project: Path, server: ForkServer) -> None:
    """Make `python -m bench` of this copy of the project run in the server."""
    main = project / "bench" / "__main__.py"
    main.rename(main.with_name("real_main.py"))
    main.write_text(_forked_main(server, "-m", "bench.real_main"))


def install_forked_inv(folder: Path, server: ForkServer, *, before: str = "") -> Path:
    """Write a program `inv` that runs in the server, after the statements `before`, and return its path."""
    path = folder / "inv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{_forked_main(server, '-c', before + INV_CODE)}")
    path.chmod(0o755)
    return path


def _forked_main(server: ForkServer, *program: str) -> str:
    return MAIN_TEMPLATE.format(root=str(ROOT), server=str(server.path), program=program)


# In the server -------------------------------------------------------------------------------------------------------


def serve(path: str, until: int, libraries: Sequence[str]) -> None:
    """Serve requests until process `until` ends; with 0, until standard input ends, as when the starter has died."""
    lifeline = os.pidfd_open(until) if until else 0
    _load(libraries)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    programs: dict[int, tuple[int, socket.socket]] = {}  # pidfd to pid and the client's connection
    while True:
        connections = [connection for _, connection in programs.values()]
        ready = set(select.select([listener, lifeline, *programs, *connections], [], [])[0])
        if lifeline in ready:
            return
        for ended, (program, connection) in list(programs.items()):
            if ready & {ended, connection}:
                _end_program(ended, program, connection)
                del programs[ended]
        if listener in ready:
            connection, _ = listener.accept()
            connection.settimeout(REQUEST_TIMEOUT_SEC)
            with contextlib.suppress(OSError, ValueError):  # the client has gone
                program = _start_program(connection)
                programs[os.pidfd_open(program)] = program, connection


def _load(libraries: Sequence[str]) -> None:
    for name in libraries:
        module = importlib.import_module(name)
        if name == "bench.torch_stack":
            module.load()
            # A process compiles these with its first model: a thousand regular expressions for all known models.
            importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("mistral")
        elif name.partition(".")[0] in PACKAGES:
            for below in pkgutil.walk_packages(module.__path__, f"{name}."):
                if below.name.startswith(NOT_PRELOADED):
                    continue
                try:
                    importlib.import_module(below.name)
                except ModuleNotFoundError as error:  # kernels need Triton, which only machines with a GPU have
                    if str(error.name).partition(".")[0] != "triton":
                        raise
    for name, module in sys.modules.items():
        if name.partition(".")[0] in PACKAGES:
            path = Path(str(module.__file__))
            SOURCES[path.relative_to(ROOT)] = module, _file_state(path)


def _start_program(connection: socket.socket) -> int:
    """Read a request, fork its program and send the pid."""
    size, handles, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
    program = os.fork()
    if program == 0:
        die_with_parent()
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
        _run_in_child(request["arguments"], request["cwd"], request["env"], handles, session=request["session"])
    for handle in handles:
        os.close(handle)
    with contextlib.suppress(OSError):
        connection.sendall(program.to_bytes(4, "big"))
    return program


def _end_program(ended: int, program: int, connection: socket.socket) -> None:
    """Send the program's exit status; kill the program first if its client has gone."""
    if not select.select([ended], [], [], 0)[0]:
        os.kill(program, signal.SIGKILL)
    status = os.waitpid(program, 0)[1]
    os.close(ended)
    with connection, contextlib.suppress(OSError):
        connection.sendall(status.to_bytes(4, "big"))


class ForkingPopen(subprocess.Popen[bytes]):
    """Popen in a program of the server: forks ranks, and starts other programs normally."""

    def _execute_child(self, *popen_arguments: Any) -> None:
        options = dict(zip(_NAMES, popen_arguments, strict=True))
        is_sequence = isinstance(options["args"], list | tuple)
        argv = [argument for argument in options["args"] if argument != "-u"] if is_sequence else []
        if argv[:2] != [sys.executable, "-m"] or not argv[2].startswith(RANK_MODULES):
            super()._execute_child(*popen_arguments)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_in_child(
                argv[1:],
                options["cwd"] or os.getcwd(),
                dict(os.environ if options["env"] is None else options["env"]),
                _streams(options),
                session=options["start_new_session"],
            )
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in PIPES))  # type: ignore[attr-defined]


def _run_in_child(
    arguments: Sequence[str], cwd: str, environment: Mapping[str, str], handles: Sequence[int], *, session: bool
) -> NoReturn:
    """Do what `python ARGUMENTS` does, and exit."""
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
        _set_command_line([sys.executable, *arguments])
        _forget("tests", *(() if _use_modules_of(Path(cwd)) else PACKAGES))
        sys.path[:] = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *LIBRARY_PATH]
        tempfile.tempdir = None
        if configuration := sys.modules.get("kubernetes.config.kube_config"):  # reads KUBECONFIG only at import
            configuration.KUBE_CONFIG_DEFAULT_LOCATION = environment.get("KUBECONFIG", "~/.kube/config")
        atexit._clear()
        code = _run(arguments)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - like the interpreter's handling of uncaught exceptions
        traceback.print_exception(error)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            sys.argv = [arguments[1], *arguments[2:]]
            sys.modules.pop(arguments[1], None)  # otherwise runpy warns
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
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


# The project's modules in the server, with the state of their files, by path below ROOT.
SOURCES: dict[Path, tuple[ModuleType, tuple[int, int]]] = {}


def _use_modules_of(project: Path) -> bool:
    """Point the loaded modules to the files of `project`, and return True, if its sources are identical to ours."""
    packages = [package for package in PACKAGES if (project / package).is_dir()]  # the others are imported from here
    ours = {path: source for path, source in SOURCES.items() if path.parts[0] in packages}
    try:
        if any(_file_state(f"{project}/{path}") != state for path, (_, state) in ours.items()):
            return False
    except OSError:
        return False
    for path, (module, _) in ours.items():
        module.__file__ = f"{project}/{path}"
        if hasattr(module, "__path__"):
            module.__path__ = [f"{project}/{path.parent}"]
    return True


def _file_state(path: Path | str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _set_command_line(argv: Sequence[str]) -> None:
    """Set the command line that /proc/PID/cmdline shows, by overwriting the server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = b"\0".join(os.fsencode(argument) for argument in argv)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    LIBRARY_PATH = [path for path in sys.path[1:] if path != str(ROOT)] + [str(ROOT)]  # with the editable install last
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:-1])
