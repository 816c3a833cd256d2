"""Getting in, or not: host keys, users, keys, ports, jump hosts; a real sshd behind a real cable says what it saw."""

import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remote.hosts.host import HostKeyRefused, HostUnreachable, InvalidAddress, LoginRefused
from tests.support.machines.network import BASTION, FAR_VM, VM, Network
from tests.support.machines.ssh_tools import from_laptop, run, wait_for
from tests.support.machines.sshd import keygen


@pytest.fixture
def network(network_of_module: Network) -> Network:
    """Shared by this file; every test finds its keys and configuration as they are after a first careful contact."""
    network_of_module.write_config()
    network_of_module.know_all()
    return network_of_module


def listens(address: str, port: int) -> bool:
    with socket.socket() as plug:
        return plug.connect_ex((address, port)) == 0


def accept_as_told(error: BaseException) -> None:
    """Type the command that the message ends with."""
    command = re.search(r"(?:accept it|replace it): (.*)$", str(error))
    assert command is not None, error
    subprocess.run(["sh", "-c", command[1]], check=True, capture_output=True)


# --- the way there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vm", "far-vm", "farther-vm"])
def test_a_host_is_reached_as_the_ssh_configuration_says(network: Network, name: str) -> None:
    with from_laptop(network, name) as host:
        assert run(host, "sh", "-c", "hostname; whoami").stdout.split() == [b"vm", b"ubuntu"]
        came_from = run(host, "sh", "-c", "echo $SSH_CONNECTION").stdout.split()[0]
        assert came_from == (b"10.79.0.1" if name == "vm" else b"10.79.2.1")


def test_the_configuration_is_understood_as_openssh_does_and_what_is_given_wins_over_it(network: Network) -> None:
    more, proxy = network.folder / "more config", "bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & cat >&3'"
    more.write_text(f"Match host somewhere\n HostName {VM}\n")
    network.write_config(
        f'Include "{more}"',
        f"Host odd\n HostName {VM}\n ProxyCommand nsenter -t {network.laptop.pid} -n {proxy}",
        f"Host vm\n User nobody\n Port 9\n IdentityFile /none\nHost {VM}\n User nobody",
    )
    given: dict[str, Any] = {"user": "ubuntu", "port": 22, "identity": str(network.key)}
    for name, choices in (("somewhere", {}), ("odd", {}), ("vm", given)):
        with from_laptop(network, name, **choices) as host:
            assert run(host, "sh", "-c", "hostname; whoami").stdout == b"vm\nubuntu\n", name


def test_all_commands_of_all_threads_share_one_login(network: Network) -> None:
    before = network.vm_sshd.logins()
    with from_laptop(network) as host, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: [run(host, "true") for _ in range(5)], range(4)))
        assert host.workdir == f"{network.home}/.qlora-fleet"
    assert network.vm_sshd.logins() == before + 1


def test_more_commands_at_once_than_the_server_has_sessions_wait_for_one(network: Network) -> None:
    with from_laptop(network) as host, ThreadPoolExecutor(24) as threads:
        run(host, "true")
        done = list(threads.map(lambda _: run(host, "sleep", "0.3").exit_code, range(24)))
    assert done == [0] * 24


def test_a_configuration_that_cannot_be_read_is_said_with_its_line_and_one_that_is_missing(network: Network) -> None:
    network.write_config("Nonsense yes")
    with from_laptop(network) as host, pytest.raises(InvalidAddress, match=r"ssh_config.*nonsense"):
        run(host, "true")
    network.ssh_config.unlink()
    with from_laptop(network) as host, pytest.raises(InvalidAddress, match="no such ssh configuration file"):
        run(host, "true")


# --- host keys --------------------------------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused_before_anything_is_sent(network: Network) -> None:
    network.known_hosts.write_text("")
    tried = network.vm_sshd.attempts()
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused, match="its host key is unknown") as refused:
            run(host, "true")
        assert network.vm_sshd.fingerprint() in str(refused.value)
        assert network.vm_sshd.attempts() == tried
        accept_as_told(refused.value)
        assert run(host, "hostname").stdout == b"vm\n"


def test_a_changed_host_key_is_refused_with_both_fingerprints(network: Network) -> None:
    with from_laptop(network) as host:
        assert run(host, "true").exit_code == 0
    old, tried = network.vm_sshd.fingerprint(), network.vm_sshd.attempts()
    network.vm_sshd.new_host_key()
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused, match="its host key has changed") as refused:
            run(host, "true")
        for part in (old, network.vm_sshd.fingerprint(), f"{network.known_hosts}:1"):
            assert part in str(refused.value)
        assert network.vm_sshd.attempts() == tried
        accept_as_told(refused.value)
        assert run(host, "hostname").stdout == b"vm\n"


def test_a_server_on_another_port_is_known_by_that_port(network: Network) -> None:
    network.known_hosts.write_text(network.vm_sshd.known_as(FAR_VM) + network.bastion_sshd.known_as(BASTION))
    with from_laptop(network, "farther-vm") as host:
        with pytest.raises(HostKeyRefused, match=rf"second-bastion .*\[{BASTION}\]:2222 ssh-ed25519") as refused:
            run(host, "true")
        accept_as_told(refused.value)
        assert run(host, "hostname").stdout == b"vm\n"


@pytest.mark.parametrize("loose", ["StrictHostKeyChecking no", "StrictHostKeyChecking accept-new"])
def test_a_jump_host_is_checked_as_strictly_whatever_the_configuration_says(network: Network, loose: str) -> None:
    network.write_config("Host *", f" {loose}")
    network.known_hosts.write_text(network.vm_sshd.known_as(FAR_VM))
    tried = network.bastion_sshd.attempts()
    with from_laptop(network, "far-vm") as host, pytest.raises(HostKeyRefused, match=r"^bastion "):
        run(host, "true")
    assert network.bastion_sshd.attempts() == tried
    assert BASTION not in network.known_hosts.read_text()


def test_hashed_names_and_patterns_are_understood_and_a_revoked_key_is_refused(network: Network) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(network.known_hosts)], check=True, capture_output=True)
    assert VM not in network.known_hosts.read_text()
    with from_laptop(network) as host:
        assert run(host, "true").exit_code == 0
    _, kind, key = network.vm_sshd.known_as(VM).split()
    network.known_hosts.write_text(f"10.79.0.*,!10.79.0.9 {kind} {key}\n")
    with from_laptop(network) as host:
        assert run(host, "true").exit_code == 0
    network.known_hosts.write_text(f"{VM} {kind} {key}\n@revoked * {kind} {key}\n")
    with from_laptop(network) as host, pytest.raises(HostKeyRefused, match=r"marked as revoked in .*known_hosts:2"):
        run(host, "true")


# --- who we are -------------------------------------------------------------------------------------------------------


def test_a_wrong_user_is_told_which_user_and_keys_were_refused(network: Network) -> None:
    with from_laptop(network, user="nosuchuser") as host, pytest.raises(LoginRefused) as refused:
        run(host, "true")
    said = str(refused.value)
    assert f"vm (nosuchuser@{VM} port 22): does not let user 'nosuchuser' in; it refused ssh-ed25519 SHA256:" in said
    assert str(network.key) in said


def test_a_key_that_is_not_authorized_is_named(network: Network, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    network.write_config("Host vm", f" IdentityFile {other}")
    network.key.rename(tmp_path / "aside")
    try:
        with from_laptop(network) as host, pytest.raises(LoginRefused, match=str(other)):
            run(host, "true")
    finally:
        (tmp_path / "aside").rename(network.key)


def test_a_key_with_a_passphrase_is_not_asked_for_and_the_agent_is_named(network: Network, tmp_path: Path) -> None:
    locked = keygen(tmp_path / "locked", passphrase="four words")
    network.vm_sshd.authorize(locked)
    network.write_config("Host vm", f" IdentityFile {locked}")
    text = network.ssh_config.read_text().replace(f" IdentityFile {network.key}\n", "")
    network.ssh_config.write_text(text)
    said = pytest.raises(LoginRefused, match=f"{locked} has a passphrase: `ssh-add {locked}`")
    with from_laptop(network) as host, said:
        run(host, "true")


def test_the_agent_opens_what_a_locked_key_file_names(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keygen(tmp_path / "held")
    network.vm_sshd.authorize(key)
    plug = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(plug)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: plug.exists() or agent.poll() is not None, "the agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(plug))
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        key.unlink()  # only its public half stays, as with a key on a token
        text = network.ssh_config.read_text().replace(f" IdentityFile {network.key}\n", f" IdentityFile {key}\n")
        network.ssh_config.write_text(text)
        with from_laptop(network) as host:
            assert run(host, "whoami").stdout == b"ubuntu\n"
    finally:
        agent.terminate()
        agent.wait()


# --- where it is ------------------------------------------------------------------------------------------------------


def test_a_port_where_something_else_listens_is_said(network: Network) -> None:
    server = network.vm.start("python3", "-m", "http.server", "8080", log="http.log")
    with network.laptop.network_of_this_thread():
        wait_for(lambda: listens(VM, 8080), "a web server")
    with from_laptop(network, port=8080) as host, pytest.raises(HostUnreachable, match="no SSH greeting"):
        run(host, "true")
    server.kill()


def test_a_machine_behind_a_jump_host_that_is_off_is_said_to_be_behind_it(network: Network) -> None:
    network.write_config(f"Host gone\n HostName {FAR_VM}\n Port 9\n ProxyJump bastion")
    said = pytest.raises(HostUnreachable, match="jump host before it cannot connect")
    with from_laptop(network, "gone") as host, said:
        run(host, "true")
