"""Network for system tests: a laptop, a build VM and a bastion, connected by cables that tests can cut.

    laptop 10.79.0.1 ───────────────────────── 10.79.0.2 vm        `network.cable`
    laptop 10.79.1.1 ── 10.79.1.2 bastion 10.79.2.1 ── 10.79.2.2 vm  `network.to_bastion`, `network.behind_bastion`

On vm and bastion a real sshd accepts the user `ubuntu` (uid 4711, no password) with `network.key` on port 22. The
laptop's ssh config (`network.ssh_config`) and known_hosts (`network.known_hosts`) contain these names:

    vm         the direct cable
    far-vm     through the bastion
    farther-vm through the bastion, then through itself

Usage:

    def test_something(network: Network) -> None:
        with network.laptop.network_of_this_thread():       # this thread's sockets and programs are the laptop's
            ...                                            # or network.laptop.run("inv", ...), .start(...)
        network.vm.run("docker", "info", user="ubuntu")     # on the VM
        dockerd = network.vm.start("dockerd", "--data-root", ..., log="dockerd.log")   # ends with the VM
        network.vm.mount_small_disk("/mnt/small", megabytes=64, owner="ubuntu")
        network.cable.cut("drop"); network.cable.repair()    # or "down"
        network.vm_sshd.kill_sessions(); network.vm_sshd.logins()

Each machine has its own /run, /mnt and /etc, so a test may create /var/run/docker.sock and /etc/docker/certs.d.
`network.vm.add_names(fra_ocir_io="10.79.0.2")` adds names. A machine's folder, `network.vm.folder`, has the same path
for its users and for the test. All processes end with the fixture, or with a killed test process.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.machines.machine import Link, Machine, require
from tests.support.machines.sshd import Sshd, keygen

USER = "ubuntu"
VM, FAR_VM, BASTION = "10.79.0.2", "10.79.2.2", "10.79.1.2"


@dataclass(frozen=True, kw_only=True)
class Network:
    """Machines, servers and cables; see this module's docstring."""

    folder: Path
    laptop: Machine
    vm: Machine
    bastion: Machine
    cable: Link
    to_bastion: Link
    behind_bastion: Link
    vm_sshd: Sshd
    bastion_sshd: Sshd
    key: Path
    ssh_config: Path
    known_hosts: Path

    @property
    def home(self) -> Path:
        """The VM user's home, with the same path there and here."""
        return self.vm.home(USER)

    def write_known_hosts(self) -> None:
        """Rewrite the laptop's known_hosts with the keys of all servers, by address."""
        lines = [
            *(self.vm_sshd.known_hosts_line(address) for address in (VM, FAR_VM)),
            self.bastion_sshd.known_hosts_line(BASTION),
        ]
        self.known_hosts.write_text("".join(lines))

    def write_config(self, *more: str) -> None:
        """Write the laptop's ssh config; the lines in `more` come first and so have priority."""
        lines = [
            *more,
            f"Host vm\n HostName {VM}",
            f"Host far-vm\n HostName {FAR_VM}\n ProxyJump bastion",
            f"Host farther-vm\n HostName {FAR_VM}\n ProxyJump bastion,far-vm",
            f"Host bastion\n HostName {BASTION}",
            "Host *",
            f" User {USER}",
            f" IdentityFile {self.key}",
            " IdentitiesOnly yes",
            f" UserKnownHostsFile {self.known_hosts}",
        ]
        self.ssh_config.write_text("".join(f"{line}\n" for line in lines))


@contextlib.contextmanager
def running_network() -> Iterator[Network]:
    """Run all machines and cables during the block. Skips the test if a requirement is missing."""
    require("ssh", "ssh-keygen")
    folder = Path(tempfile.mkdtemp(prefix="qlora-fleet-network-"))
    folder.chmod(0o755)  # the VM's user needs access to its home in this folder
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        laptop = stack.enter_context(Machine("laptop", folder))
        bastion = stack.enter_context(Machine("bastion", folder, own_pids=True))
        vm = stack.enter_context(Machine("vm", folder, own_pids=True))
        links = (
            stack.enter_context(Link(laptop, "10.79.0.1", vm, VM)),
            stack.enter_context(Link(laptop, "10.79.1.1", bastion, BASTION)),
            stack.enter_context(Link(bastion, "10.79.2.1", vm, FAR_VM)),
        )
        key = keygen(folder / "id_ed25519")
        for machine in (vm, bastion):
            machine.add_user(USER)

        def server(machine: Machine, name: str) -> Sshd:
            sshd = Sshd(folder / name, machine=machine, address="0.0.0.0", port=22, users=(USER,))  # noqa: S104
            started = stack.enter_context(sshd)
            started.authorize(key)
            return started

        network = Network(
            folder=folder,
            laptop=laptop,
            vm=vm,
            bastion=bastion,
            cable=links[0],
            to_bastion=links[1],
            behind_bastion=links[2],
            vm_sshd=server(vm, "vm-sshd"),
            bastion_sshd=server(bastion, "bastion-sshd"),
            key=key,
            ssh_config=folder / "ssh_config",
            known_hosts=folder / "known_hosts",
        )
        # For programs on the laptop: ssh reads the home folder from passwd, not from HOME.
        (laptop.folder / "home" / ".ssh").mkdir(mode=0o700)
        (laptop.folder / "home" / ".ssh" / "config").symlink_to(network.ssh_config)
        passwd = laptop.folder / "etc" / "passwd"
        root, _, rest = passwd.read_text().partition("\n")
        fields = root.split(":")
        assert fields[2] == str(os.geteuid())
        fields[5] = str(laptop.folder / "home")
        passwd.write_text(":".join(fields) + "\n" + rest)
        laptop.add_names(vm=VM, bastion=BASTION)
        network.write_config()
        network.write_known_hosts()
        yield network
