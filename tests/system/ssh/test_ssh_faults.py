"""Faults of an open connection: cut cables, killed servers, deadlines, shell output; and secrets that appear nowhere.

The cables are virtual, but the kernel's behaviour is real: packets are dropped, or a card is switched off.
"""

import contextlib
import hashlib
import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote.hosts.ssh.connection
import remote.hosts.ssh.host
from remote.hosts.command import Command, Secret
from remote.hosts.host_protocol import CommandFailed, CommandTimedOut, HostUnreachable, InvalidAddress, check
from remote.image import vm_jobs
from remote.jobs import transfer
from remote.jobs.job import Agent, Job, JobState
from tests.support.faults import read_process_table
from tests.support.machines.network import Network
from tests.support.machines.ssh_tools import (
    PATIENCE_SEC,
    from_laptop,
    is_running_on_vm,
    run,
    running_in_thread,
    shorten_timeouts,
    wait_for,
)

WINDOW = 2 << 20  # the window of OpenSSH's sshd in bytes


@pytest.fixture
def network(module_network: Network) -> Network:
    """Network shared by this file, with its cables repaired."""
    for cable in (module_network.cable, module_network.to_bastion, module_network.behind_bastion):
        cable.repair()
    return module_network


def sleeper(number: int) -> str:
    return f"sleep 300.{number}{os.getpid()}"


# --- cut --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("route", "how"), [("vm", "down"), ("vm", "drop"), ("far-vm", "drop")])
def test_a_link_cut_during_a_command_is_an_error_and_the_next_command_reconnects(
    network: Network, monkeypatch: pytest.MonkeyPatch, route: str, how: str
) -> None:
    """For far-vm the cut is behind the bastion, where this machine's kernel cannot see it."""
    shorten_timeouts(monkeypatch)
    cable = network.cable if route == "vm" else network.behind_bastion
    with from_laptop(network, route) as host:

        def cut(_: bytes) -> None:
            cable.cut(how)  # type: ignore[arg-type]

        with pytest.raises(HostUnreachable, match=r"^vm: "):
            run(host, "sh", "-c", "echo up; exec sleep 60", on_stdout=cut, timeout_sec=300.0)
        cable.repair()
        assert run(host, "hostname").stdout == b"vm\n"


def test_a_command_with_a_lost_link_ends_at_its_deadline_on_the_host(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_timeouts(monkeypatch)
    monkeypatch.setattr(remote.hosts.ssh.host, "MARGIN_SEC", 1.0)
    script = f"echo up; {sleeper(1)}; true"
    with from_laptop(network) as host:
        with pytest.raises((HostUnreachable, CommandTimedOut)):
            run(host, "sh", "-c", script, on_stdout=lambda _: network.cable.cut("drop"), timeout_sec=5.0)
        wait_for(lambda: not is_running_on_vm(network, sleeper(1)), "its end on the host")


def test_a_push_over_a_cut_cable_resumes_inside_the_file(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_timeouts(monkeypatch)
    source = tmp_path / "source"
    source.mkdir()
    content = random.Random(1).randbytes(40 << 20)
    (source / "large").write_bytes(content)
    target = network.home / "pushed"

    def cut_and_repair() -> None:
        wait_for(lambda: any(path.stat().st_size > 4 << 20 for path in target.glob(".*.part")), "the first bytes")
        network.cable.cut("drop")
        time.sleep(3.0)
        network.cable.repair()

    with from_laptop(network) as host, running_in_thread(cut_and_repair):
        result = transfer.push(Agent(host), source, str(target))
    assert hashlib.sha256((target / "large").read_bytes()).digest() == hashlib.sha256(content).digest()
    assert len(content) < result.byte_count <= len(content) + 4 * WINDOW
    (target / "large").unlink()


# --- killed -----------------------------------------------------------------------------------------------------------


def test_a_killed_shell_around_a_command_is_a_lost_connection(network: Network) -> None:
    with from_laptop(network) as host, pytest.raises(HostUnreachable):
        run(host, "sh", "-c", "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $(ps -o ppid= -p $$)))")


# --- login shell ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def login_shell(network: Network, shell: str, start_file: str, text: str) -> Iterator[None]:
    """Give the VM's user this login shell and a start-up file of it."""
    if not Path(shell).exists():
        pytest.skip(f"{shell} is not installed")
    passwd = network.vm.folder / "etc" / "passwd"
    before, file = passwd.read_text(), network.home / start_file
    passwd.write_text(before.replace(f"{network.home}:/bin/bash", f"{network.home}:{shell}"))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    try:
        yield
    finally:
        passwd.write_text(before)
        file.unlink()


WELCOME = "echo 'Welcome to this machine'\n"


@pytest.mark.parametrize(
    ("shell", "start_file", "text"),
    [
        ("/bin/bash", ".bashrc", f"{WELCOME}echo 'mind the step' >&2\numask 000\n"),
        ("/bin/dash", ".profile", ""),
        ("/bin/csh", ".cshrc", f"{WELCOME}set path = (/usr/bin /bin)\numask 000\n"),
        ("/bin/zsh", ".zshenv", WELCOME),
        ("/usr/bin/fish", ".config/fish/config.fish", WELCOME),
    ],
)
def test_neither_the_login_shell_nor_the_output_of_its_start_files_affects_a_command(
    network: Network, shell: str, start_file: str, text: str
) -> None:
    argument = 'it\'s "$HOME" `id` \\n !x\n*'
    with login_shell(network, shell, start_file, text), from_laptop(network) as host:
        completed = run(host, "printf", "%s|", argument, stdin=b"ignored")
        assert completed.stdout == argument.encode() + b"|"
        assert run(host, "cat", stdin=b"in\n").stdout == b"in\n"
        assert run(host, "sh", "-c", "umask").stdout == b"0077\n"
        assert Job(Agent(host), f"{host.workdir}/none").status().state is JobState.ABSENT
        with pytest.raises(CommandTimedOut, match=r" 0\.5 s$"):
            run(host, "sh", "-c", f"{sleeper(2)} & {sleeper(2)}", timeout_sec=0.5)
        assert not is_running_on_vm(network, sleeper(2))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("read line", "255"),
        ("exec zsh", "255"),
        ("exec tcsh", "255"),
        ("echo 'your password has expired' >&2; exit 1", "1 .*: your password has expired"),
    ],
)
def test_a_start_file_that_does_more_than_set_variables_is_no_fault_that_passes(
    network: Network, text: str, token: str
) -> None:
    with login_shell(network, "/bin/bash", ".bashrc", text), from_laptop(network) as host:
        with pytest.raises(InvalidAddress, match=rf"^vm: .* exit code {token}.*; .*`ssh vm true`"):
            run(host, "touch", "ran", folder=str(network.home))
        assert not (network.home / "ran").exists()


def test_a_start_file_that_never_ends_is_named_at_the_deadline(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.hosts.ssh.host, "_END_TIMEOUT_SEC", 1.0)
    with login_shell(network, "/bin/bash", ".bashrc", sleeper(3)), from_laptop(network) as host:
        with pytest.raises(CommandTimedOut, match="start-up file"):
            run(host, "true", timeout_sec=1.0)
        network.vm.run("pkill", "-f", sleeper(3))


def test_a_host_without_python_is_an_invalid_address(network: Network) -> None:
    with from_laptop(network) as host:
        host.python = ("/no/python3",)
        for call in (Agent(host).check_disk_space, lambda: vm_jobs.observe(host), lambda: vm_jobs.claim(host, "/tmp")):
            with pytest.raises(InvalidAddress, match=r"^vm: .*/no/python3.*; install Python 3\.9"):
                call()


# --- secrets ----------------------------------------------------------------------------------------------------------

MARK = secrets.token_hex(8)  # unique: no other process of this machine has it
SECRET = f'a {MARK}\'s "argument" with $HOME\nand `{MARK}`'


def test_a_secret_on_standard_input_appears_nowhere_else(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret, leaks = Secret(SECRET), list[bytes]()

    def search_processes(_: bytes) -> None:
        leaks.extend(content for content in read_process_table() if MARK.encode() in content)

    with from_laptop(network) as host:
        # Prints its input, as a careless program would, and fails.
        script = 'got=$(cat); echo up; sleep 1; echo "cannot log in with $got" >&2; exit 1'
        command = Command(argv=("sh", "-c", script), environment={"A": "b"}, folder="/", secrets=(secret,))
        completed = host.run(command, stdin=SECRET.encode(), on_stdout=search_processes, timeout_sec=PATIENCE_SEC)
        with pytest.raises(CommandFailed) as failed:
            check(host, command, completed)
    assert "***" in str(failed.value)
    assert leaks == []
    for text in (str(failed.value), repr(failed.value), caplog.text, repr(command)):
        assert MARK not in text
    for path in (*network.home.rglob("*"), *network.vm.folder.rglob("*.log"), *network.folder.glob("*/sshd.log")):
        if path.is_file():
            assert MARK.encode() not in path.read_bytes(), path
