"""Sandbox of a container: a process in its own namespaces with the machine's programs and the pod's folders.

Runs as a script with the specification (JSON) on standard input. It stays as the parent of the container's PID 1, like
containerd's shim, and writes two lines to the file descriptor in its first argument: that pid, and its exit code.

Own namespaces: mounts, processes, host name, IPC. Shared with the machine: network, users, kernel limits. The container
sees the machine's /usr, /bin, /lib, /etc, /opt and the folders of `image_paths`, all read-only. All processes die with
the parent of this process, so none survives a killed test run.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_BIND, _REC, _PRIVATE, _RDONLY, _REMOUNT = 0x1000, 0x4000, 0x40000, 0x1, 0x20
_NOSUID_NODEV = 0x2 | 0x4
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_IMAGE = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "etc")
_OWN = ("root", "home", "var", "run", "mnt", "proc", "sys", "dev", "var/tmp", "var/log")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> None:
    if getattr(_libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{args!r}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def _bind(source: str, target: str, *, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            with open(target, "w"):
                pass
    _mount(source, target, "", _BIND | _REC)
    if read_only:
        _mount("", target, "", _BIND | _REMOUNT | _RDONLY)


def _devices(root: str) -> None:
    _mount("tmpfs", f"{root}/dev", "tmpfs", 0, "mode=755,size=64k")
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for name, where in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{where}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    _mount("shm", f"{root}/dev/shm", "tmpfs", _NOSUID_NODEV, "mode=1777,size=64m")


def _build(spec: dict[str, Any]) -> None:
    """Mount the container's file tree at `root`, visible only in this mount namespace."""
    root = spec["root"]
    _mount("", "/", "", _REC | _PRIVATE)
    _mount(root, root, "", _BIND)
    for name in _IMAGE:
        if os.path.islink(f"/{name}"):
            if not os.path.islink(f"{root}/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            _bind(f"/{name}", f"{root}/{name}", read_only=True)
    for name in _OWN:
        os.makedirs(f"{root}/{name}", exist_ok=True)
    for name in ("tmp", "var/tmp"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        os.chmod(f"{root}/{name}", 0o1777)  # noqa: S103 (a /tmp)
    _devices(root)
    # Shallow mounts first, so that a volume may lie inside another.
    for mount in sorted(spec["mounts"], key=lambda mount: mount["path"].count("/")):
        target = root + mount["path"]
        if "tmpfs" in mount:
            os.makedirs(target, exist_ok=True)
            _mount("tmpfs", target, "tmpfs", _NOSUID_NODEV, mount["tmpfs"])
        else:
            _bind(mount["source"], target, read_only=False)
    for path in spec["image_paths"]:
        _bind(path, root + path, read_only=True)
    os.makedirs(root + spec["cwd"], exist_ok=True)


def _start_command(spec: dict[str, Any]) -> None:
    """Become PID 1 of the container, in the child. Raises OSError; does not return."""
    root = spec["root"]
    _mount("proc", f"{root}/proc", "proc", _NOSUID_NODEV)
    if spec["read_only_root"]:
        _mount("", root, "", _BIND | _REMOUNT | _RDONLY)
    _call("sethostname", spec["hostname"].encode(), len(spec["hostname"]))
    os.chroot(root)
    os.chdir(spec["cwd"])
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which clears it
    os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])  # noqa: S606


def main() -> None:
    spec = json.loads(sys.stdin.buffer.read())
    report_fd = int(sys.argv[1])

    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec["parent"]:
        return  # the kubelet died while this process was starting
    os.umask(0o022)
    _call("unshare", _NEWNS | _NEWUTS | _NEWIPC | _NEWPID)
    _build(spec)
    started, starting = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.set_inheritable(report_fd, False)
        _start_command(spec)
    os.close(starting)
    os.read(started, 1)  # until the child's exec closes its end
    os.write(report_fd, b"%d\n" % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(report_fd, b"%d\n" % (code if code >= 0 else 128 - code))


if __name__ == "__main__":
    main()
