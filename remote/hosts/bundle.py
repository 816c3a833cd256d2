"""Delivery of our own modules to a host. Every module of ours that runs on a host goes through here.

A *program* is several modules, installed in a folder named by their digest (`remote.jobs.job` installs and calls it).
An *inline* module is sent as the text of `python -c` and leaves no file: for code that runs before anything may be
written, or as another user.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import chain

from remote.hosts.command import Command, Secret
from remote.hosts.host_protocol import Host

# Isolated, without site packages: starts in half the time. Without compiled copies: one that a full disk has truncated
# makes every later start fail (CPython gh-126606), and our modules compile in a millisecond. UTF-8 in every locale.
PYTHON_FLAGS = ("-I", "-S", "-B", "-X", "utf8")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Modules for a host: `texts` by path. Each version has its own folder, so a running one keeps its files."""

    texts: Mapping[str, str]

    @functools.cached_property
    def content(self) -> bytes:
        """The paths and texts in turn, separated by NUL, which no source contains."""
        return "\0".join(chain.from_iterable(self.texts.items())).encode()

    @functools.cached_property
    def folder(self) -> str:
        """The program's folder below the host's workdir."""
        return f".onhost-{hashlib.sha256(self.content).hexdigest()[:12]}"

    def path(self, module: str) -> str:
        """Return the file of `module` below the host's workdir. Raises KeyError if the program has no such module."""
        path = _path(module)
        if path not in self.texts:
            raise KeyError(f"{module} is not in the program")
        return f"{self.folder}/{path}"


@functools.cache
def load_program(*names: str) -> Program:
    """Load modules and packages, these without their subpackages, and the `__init__` of each parent package."""
    modules = set()
    for name in names:
        parts = name.split(".")
        modules |= {".".join((*parts[:depth], "__init__")) for depth in range(1, len(parts))}
        if resources.files(".".join(parts[:-1])).joinpath(f"{parts[-1]}.py").is_file():
            modules.add(name)
            continue
        files = (entry.name for entry in resources.files(name).iterdir())
        modules |= {f"{name}.{file.removesuffix('.py')}" for file in files if file.endswith(".py")}
    return Program(texts={_path(module): read_source(module) for module in sorted(modules)})


def read_source(module: str) -> str:
    """Read the text of a module. Raises FileNotFoundError or ModuleNotFoundError if it does not exist."""
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_text("utf-8")


def inline_command(host: Host, module: str, *arguments: str, secrets: tuple[Secret, ...] = ()) -> Command:
    """Return the command that runs the text of `module`, which must not import other modules of ours."""
    return Command(argv=(*host.python, *PYTHON_FLAGS, "-c", read_source(module), *arguments), secrets=secrets)


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"
