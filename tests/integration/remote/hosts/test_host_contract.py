"""One command, local, over SSH and in a pod: its exit code, its output, and no remaining process after an error."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.hosts import local_program
from remote.hosts.command import Command
from remote.hosts.host_protocol import CommandTimedOut, Completed, Host, TooMuchOutput
from remote.hosts.local import LocalHost
from remote.hosts.pods.host import PodHost
from tests.support.hosts.fake_worker import FakePod
from tests.support.hosts.local_fleet import PATIENCE_SEC, LocalFleet, processes_under, wait_for
from tests.support.machines.ssh_client import SshFleet


@pytest.fixture(params=["local", "ssh", "pod"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host of each kind. The pod is a fake without a cluster; test_pod_host.py has the tests specific to pods.

    Remaining processes of a command are an error.
    """
    monkeypatch.setenv("FAKE_KUBECTL_FOLDER", str(tmp_path))
    is_ssh = request.param == "ssh"
    with SshFleet(tmp_path, request.getfixturevalue("ssh_client")) if is_ssh else LocalFleet(tmp_path) as local:
        yield FakePod(tmp_path).host if request.param == "pod" else local.host()


def run(host: Host, *argv: str, folder: Path | None = None, **options: object) -> Completed:
    options.setdefault("timeout_sec", PATIENCE_SEC)
    return host.run(Command(argv=argv, folder=None if folder is None else str(folder)), **options)  # type: ignore[arg-type]


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


def test_the_exit_code_is_the_commands_own_signals_count_from_128_and_both_streams_are_separate(host: Host) -> None:
    completed = run(host, "sh", "-c", "echo out; echo err >&2; exit 255")
    assert (completed.exit_code, completed.stdout, completed.stderr) == (255, b"out\n", b"err\n")
    assert run(host, "sh", "-c", "kill -KILL $$").exit_code == 137


def test_megabytes_go_both_ways_at_once_and_chunks_reach_the_callback_in_the_calling_thread(host: Host) -> None:
    content, received, threads = os.urandom(5 << 20), bytearray(), set()

    def on_stdout(chunk: bytes) -> None:
        received.extend(chunk)
        threads.add(threading.get_ident())

    assert run(host, "cat", stdin=io.BytesIO(content)).stdout == content
    assert run(host, "cat", stdin=content, on_stdout=on_stdout).stdout == b""
    assert (bytes(received), threads) == (content, {threading.get_ident()})


def test_a_program_that_never_reads_its_input_does_not_hang_nor_one_without_input(host: Host) -> None:
    assert run(host, "cat").stdout == b""
    assert run(host, "sh", "-c", "exit 3", stdin=b"x" * (8 << 20)).exit_code == 3
    assert run(host, *script("import os; os.close(0); print('done')"), stdin=b"x" * (8 << 20)).stdout == b"done\n"


def test_a_missing_command_or_folder_or_a_file_that_is_no_program_ends_with_127(host: Host, tmp_path: Path) -> None:
    completed = run(host, "/no/such/program", stdin=b"x" * 100_000)
    assert completed.exit_code == 127
    assert b"/no/such/program" in completed.stderr
    assert completed.stderr.rstrip().endswith(b": No such file or directory")
    completed = run(host, "true", folder=tmp_path / "absent")
    assert (completed.exit_code, completed.stderr.decode()) == (127, f"{tmp_path}/absent: No such file or directory")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "text").chmod(0o755)
    assert run(host, str(tmp_path / "text")).exit_code == 127


def test_folder_and_environment_are_the_commands(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME\nof sorts"
    folder.mkdir()
    environment = {"GREETING": "it's a=b\n`me` $HOME", "n": "", "PATH": f"/no/such:{os.environ['PATH']}"}
    command = Command(argv=shell('pwd; echo "$GREETING"'), environment=environment, folder=str(folder))
    completed = host.run(command, timeout_sec=PATIENCE_SEC)
    assert completed.stdout.decode() == f"{folder}\nit's a=b\n`me` $HOME\n"


def test_a_local_command_inherits_the_rest_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    host = LocalHost(name="worker-1", workdir=str(tmp_path))
    assert run(host, "sh", "-c", 'echo "$INHERITED"', folder=tmp_path).stdout == b"yes\n"


ODD_ARGUMENTS = [
    *("", " ", "a b", "it's", '"', "$HOME", "`id`", "\\", "\\n", "!!", "*", "~", "-n", "--", "a\nb", "\n", "tab\t"),
    *("ü日本", "not-utf8-\udcff", "\udc81\udc88", "%s", "x" * 100_000),
]


def test_every_argument_arrives_unchanged(host: Host) -> None:
    echo = script("import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))")
    assert run(host, *echo, *ODD_ARGUMENTS).stdout.split(b"|") == [os.fsencode(word) for word in ODD_ARGUMENTS]


# --- broken off -------------------------------------------------------------------------------------------------------

# Prints "up", then runs on and ignores SIGTERM, as does a child in its group.
IGNORES_SIGTERM = "trap '' TERM; (trap '' TERM; sleep 300) & echo up; sleep 300 & wait; sleep 300"
CLOSES_ITS_OUTPUT = "import os, time; os.close(1); os.close(2)"


@pytest.mark.parametrize(
    ("argv", "limit", "tokens"),
    [
        (shell(IGNORES_SIGTERM), {"timeout_sec": 0.3}, r"0\.3 s"),
        (script(f"{CLOSES_ITS_OUTPUT}; time.sleep(300)"), {"timeout_sec": 0.5}, r"0\.5 s"),
        (shell("while :; do echo busy >&2; sleep 0.1; done"), {"idle_timeout_sec": 0.5}, r"silent.* 0\.5 s"),
    ],
    ids=["ignores SIGTERM", "output closed", "busy on the other stream"],
)
def test_a_command_is_ended_at_its_deadline_with_everything_it_started(
    host: Host, tmp_path: Path, argv: tuple[str, ...], limit: dict[str, float], tokens: str
) -> None:
    with pytest.raises(CommandTimedOut, match=tokens):
        run(host, *argv, folder=tmp_path, **limit)
    wait_for(lambda: not processes_under(tmp_path), "the end of all its processes")


def test_output_restarts_the_idle_timeout_and_a_slow_callback_does_not_count_as_silence(host: Host) -> None:
    received: list[bytes] = []

    def on_stdout(chunk: bytes) -> None:
        received.append(chunk)
        time.sleep(1.8 if len(received) == 1 else 0.0)

    # The limit also holds until the first output, which a busy machine may delay.
    command = script("import time\nfor _ in range(40): print('x', flush=True); time.sleep(0.05)")
    run(host, *command, on_stdout=on_stdout, idle_timeout_sec=1.5)
    assert b"".join(received) == b"x\n" * 40


@pytest.mark.parametrize("error", [PermissionError(1, "no"), KeyboardInterrupt()])
def test_an_error_of_the_callback_is_raised_and_ends_the_command(
    host: Host, tmp_path: Path, error: BaseException
) -> None:
    def on_stdout(_: bytes) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run(host, "sh", "-c", "echo up; sleep 300", folder=tmp_path, on_stdout=on_stdout)
    assert raised.value is error
    wait_for(lambda: not processes_under(tmp_path), "its end")


@pytest.mark.parametrize("to", ["", ">&2"])
def test_endless_output_ends_at_a_limit_that_is_named(
    host: Host, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_program, "MAX_OUTPUT_BYTES", 1 << 20)
    named = host.name if isinstance(host, PodHost) else "yes"
    with pytest.raises(TooMuchOutput, match=f"{named}.* 1 MiB"):
        run(host, "sh", "-c", f"exec yes {to}", folder=tmp_path)
    wait_for(lambda: not processes_under(tmp_path), "its end")


@pytest.mark.parametrize("then", ["exec cat", "exec sleep 300 >&- 2>&-"])
def test_an_error_of_the_input_is_raised_and_ends_the_command(host: Host, tmp_path: Path, then: str) -> None:
    class Broken:
        def read(self, _: int, /) -> bytes:
            wait_for((tmp_path / "begun").exists, "the command has begun")
            raise FileNotFoundError(2, "gone")

    with pytest.raises(FileNotFoundError):
        run(host, "sh", "-c", f"touch begun; {then}", folder=tmp_path, stdin=Broken())
    wait_for(lambda: not processes_under(tmp_path), "its end")


OPERATOR = """
import sys
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
command = Command(argv=("sh", "-c", "touch begun; exec sleep 300"), folder=sys.argv[1])
LocalHost(name="worker-1", workdir=sys.argv[1]).run(command, timeout_sec=300.0)
"""


def test_a_local_command_ends_with_a_killed_operator_process(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", OPERATOR, str(tmp_path))) as operator:
        wait_for((tmp_path / "begun").exists, "the command has begun")
        operator.kill()
    wait_for(lambda: not processes_under(tmp_path), "its end")


def test_a_ctrl_c_at_the_terminal_is_not_passed_on(host: Host) -> None:
    assert int(run(host, *script("import os; print(os.getsid(0))")).stdout) != os.getsid(0)
