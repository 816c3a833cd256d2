"""Login over SSH and its errors: host keys, users, keys, ports, jump hosts, with a real sshd behind a virtual cable."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remote.hosts.host_protocol import HostKeyRefused, LoginRefused
from tests.support.machines.network import BASTION, FAR_VM, VM, Network
from tests.support.machines.ssh_tools import from_laptop, run
from tests.support.machines.sshd import keygen, running_agent


@pytest.fixture
def network(module_network: Network) -> Network:
    """Network shared by this file; every test starts with the original configuration and accepted host keys."""
    module_network.write_config()
    module_network.write_known_hosts()
    return module_network


def run_accept_command(error: BaseException) -> None:
    """Run the command at the end of the message."""
    command = re.search(r"(?:accept it|replace it): (.*)$", str(error))
    assert command is not None, error
    subprocess.run(["sh", "-c", command[1]], check=True, capture_output=True)


# --- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "client"), [("vm", "10.79.0.1"), ("far-vm", "10.79.2.1"), ("farther-vm", FAR_VM)])
def test_a_host_is_reached_by_the_route_of_the_ssh_configuration(network: Network, name: str, client: str) -> None:
    with from_laptop(network, name) as host:
        assert run(host, "sh", "-c", "hostname; whoami").stdout.split() == [b"vm", b"ubuntu"]
        assert run(host, "sh", "-c", "echo $SSH_CONNECTION").stdout.decode().split()[0] == client


def test_the_configuration_is_read_as_by_openssh_and_options_override_it(network: Network) -> None:
    included, proxy = network.folder / "included config", "bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & cat >&3'"
    included.write_text(f"Match host somewhere\n HostName {VM}\n")
    network.write_config(
        f'Include "{included}"',
        f"Host odd\n HostName {VM}\n ProxyCommand nsenter -t {network.laptop.pid} -n {proxy}",
        f"Host vm\n User daemon\n Port 9\n IdentityFile /none\nHost {VM}\n User daemon",
    )
    for name in ("somewhere", "odd", "ssh://ubuntu@vm:22"):
        with from_laptop(network, name) as host:
            assert run(host, "sh", "-c", "hostname; whoami").stdout == b"vm\nubuntu\n", name


def test_commands_of_more_threads_than_the_server_has_sessions_share_one_login(network: Network) -> None:
    before = network.vm_sshd.logins()
    with from_laptop(network) as host, ThreadPoolExecutor(24) as threads:
        exit_codes = list(threads.map(lambda _: run(host, "sleep", "0.3").exit_code, range(24)))
        assert host.workdir == f"{network.home}/.qlora-fleet"
    assert exit_codes == [0] * 24
    assert network.vm_sshd.logins() == before + 1


# --- host keys --------------------------------------------------------------------------------------------------------


def test_an_unknown_or_changed_host_key_is_refused_before_any_login(network: Network) -> None:
    network.known_hosts.write_text("")
    old, attempts = network.vm_sshd.fingerprint(), network.vm_sshd.attempts()
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused, match="ssh-ed25519") as refused:
            run(host, "true")
        assert old in str(refused.value)
        assert network.vm_sshd.attempts() == attempts
        run_accept_command(refused.value)
        assert run(host, "hostname").stdout == b"vm\n"
    network.vm_sshd.replace_host_key()
    attempts = network.vm_sshd.attempts()
    with from_laptop(network) as host:
        with pytest.raises(HostKeyRefused, match="ssh-ed25519") as refused:
            run(host, "true")
        for part in (old, network.vm_sshd.fingerprint(), f"{network.known_hosts}:1"):
            assert part in str(refused.value)
        assert network.vm_sshd.attempts() == attempts
        run_accept_command(refused.value)
        assert run(host, "hostname").stdout == b"vm\n"


def test_a_jump_host_is_checked_strictly_with_any_configuration(network: Network) -> None:
    network.write_config("Host *", " StrictHostKeyChecking no")
    network.known_hosts.write_text(network.vm_sshd.known_hosts_line(FAR_VM))
    attempts = network.bastion_sshd.attempts()
    with from_laptop(network, "far-vm") as host, pytest.raises(HostKeyRefused, match=r"^bastion "):
        run(host, "true")
    assert network.bastion_sshd.attempts() == attempts
    assert BASTION not in network.known_hosts.read_text()


# --- users and keys ---------------------------------------------------------------------------------------------------


def test_the_error_for_a_wrong_user_names_the_user_and_the_refused_keys(network: Network) -> None:
    named = re.escape(f"vm (nosuchuser@{VM} port 22): ") + f".* ssh-ed25519 SHA256:.*{network.key}"
    with from_laptop(network, "nosuchuser@vm") as host, pytest.raises(LoginRefused, match=f"^{named}"):
        run(host, "true")


def test_a_key_with_a_passphrase_causes_no_prompt_and_an_error_that_names_ssh_add(
    network: Network, tmp_path: Path
) -> None:
    locked = keygen(tmp_path / "locked", passphrase="four words")
    network.vm_sshd.authorize(locked)
    network.write_config("Host vm", f" IdentityFile {locked}")
    text = network.ssh_config.read_text().replace(f" IdentityFile {network.key}\n", "")
    network.ssh_config.write_text(text)
    expected_error = pytest.raises(LoginRefused, match=f"{locked} has a passphrase: `ssh-add {locked}`")
    with from_laptop(network) as host, expected_error:
        run(host, "true")


def test_the_agent_is_used_for_a_configured_key_with_a_passphrase(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keygen(tmp_path / "held")
    network.vm_sshd.authorize(key)
    with running_agent(tmp_path / "agent", key) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        key.unlink()  # only its public half stays, as with a key on a token
        text = network.ssh_config.read_text().replace(f" IdentityFile {network.key}\n", f" IdentityFile {key}\n")
        network.ssh_config.write_text(text)
        with from_laptop(network) as host:
            assert run(host, "whoami").stdout == b"ubuntu\n"
