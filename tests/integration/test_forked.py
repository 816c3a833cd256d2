"""Forked programs have the same output, exit codes and signals as started ones (tests/support/forked.py)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import ForkServer
from tests.support.hosts.local_fleet import wait_for
from tests.support.paths import ROOT

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
WHERE = (
    "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), dict(os.environ), os.getpgid(0) == os.getpid()]))"
)
SLEEPS = "import os, time\nos.write(1, b'there\\n')\ntime.sleep(600)"  # one write: two processes share the stream


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("server"), ()) as server:
        yield server


@pytest.mark.parametrize(
    "code",
    [
        "print('out'); import sys; print('err', file=sys.stderr)",
        "import sys; print(sys.stdin.read().upper())",
        "import sys; sys.exit(7)",
        "import sys; sys.exit('in words')",
        "import os; os._exit(9)",
        "import atexit; atexit.register(print, 'last words')",
        "import threading; threading.Thread(target=lambda: (__import__('time').sleep(0.1), print('a thread'))).start()",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'exit(3)']).returncode)",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); [open('/dev/null') for _ in range(99)]",
        "import os; print(sorted(os.listdir('/proc/self/fd'))[:4])",
        "import signal; print([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])",
        "raise LookupError('nowhere')",
        "raise KeyboardInterrupt",
    ],
)
def test_a_forked_program_has_the_output_and_exit_code_of_a_started_one(server: ForkServer, code: str) -> None:
    outcomes = []
    for process in (subprocess.Popen((sys.executable, "-c", code), **PIPES), server.start("-c", code, **PIPES)):
        with process:
            out, err = process.communicate("input", timeout=60)
        outcomes.append((process.returncode, out, err.splitlines()[-1:]))
    assert outcomes[0] == outcomes[1]


def test_argv_folder_environment_and_session_are_those_requested(server: ForkServer, tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": {"A": "1", "PYTHONPATH": "x"}, "start_new_session": True, **PIPES}
    with server.start("-c", WHERE, "a b", "", **options) as process:
        argv, folder, environment, is_leader = json.loads(process.communicate(timeout=60)[0])
        proc_folder = Path(f"/proc/{process.pid}")
    assert (argv, folder, is_leader) == (["-c", "a b", ""], str(tmp_path), True)
    assert {name: environment[name] for name in ("A", "PYTHONPATH")} == {"A": "1", "PYTHONPATH": "x"}
    assert not proc_folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_reaches_the_program_that_its_command_line_names(server: ForkServer, number: int) -> None:
    with server.start("-c", SLEEPS, "its name", **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert process.poll() is None
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert line == [os.fsencode(word) for word in (sys.executable, "-c", SLEEPS, "its name")]
        process.send_signal(number)
        assert process.wait(60) == -number


def test_run_in_server_forwards_streams_signals_and_exit_code(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import signal, sys, time\n"
        "def leave(*_): sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print(*sys.argv[1:], flush=True)\n"
        "time.sleep(60)\n"
    )
    code = f"from tests.support.forked import run_in_server; run_in_server({str(server.path)!r}, '-m', 'work')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-c", code, "a", "b")
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a b\n"
        process.terminate()
        assert process.wait(60) == 143


@pytest.mark.parametrize("killed", ["starter", "server"])
def test_a_program_dies_with_its_starter_or_the_server(killed: str, tmp_path: Path) -> None:
    code = (
        "import os, time; from pathlib import Path; from tests.support.forked import ForkServer\n"
        f"with ForkServer(Path({str(tmp_path)!r}), ()) as server:\n"
        f"    program = server.start('-c', {SLEEPS!r}).pid\n"
        "    os.write(1, f'{program} {server._process.pid}\\n'.encode()); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen((sys.executable, "-c", code), env=environment, **PIPES) as starter:
        assert starter.stdout is not None
        lines = [starter.stdout.readline() for _ in range(2)]
        program, server = next(map(int, line.split()) for line in lines if line != "there\n")
        os.kill(starter.pid if killed == "starter" else server, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{program}").exists(), "the program's end")
        starter.kill()
