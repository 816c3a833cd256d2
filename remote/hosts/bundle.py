"""How our own files get to a host and run there. Every file of ours that runs on a host goes through this module.

A *program* is several modules, installed in a folder that their digest names (`remote.jobs.agent` installs and calls
it). A module that runs *once* travels as the text of `python -c` and leaves nothing behind: for what runs before
anything may be written, or as another user.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import chain

from remote.hosts.command import Command, Secret
from remote.hosts.host import Host

# Isolated, no site packages: what needs none of them starts in half the time. No compiled copies: one that a full disk
# has cut short ends every later start (CPython gh-126606), and ours compile in a millisecond.
PYTHON_FLAGS = ("-I", "-S", "-B")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Modules of ours for a host: `texts` by path. Two versions have two folders, so a running one keeps its files."""

    texts: Mapping[str, str]

    @functools.cached_property
    def content(self) -> bytes:
        """Paths and texts in turn, apart by NUL, which no source holds."""
        return "\0".join(chain.from_iterable(self.texts.items())).encode()

    @functools.cached_property
    def folder(self) -> str:
        """The program's folder below the host's workdir."""
        return f".onhost-{digest(self.content)}"

    def path(self, module: str) -> str:
        """The file of `module` below the host's workdir. Raises KeyError if the program does not hold it."""
        path = _path(module)
        if path not in self.texts:
            raise KeyError(f"{module} is not in the program")
        return f"{self.folder}/{path}"


@functools.cache
def program(*packages: str) -> Program:
    """All modules of `packages` (not of the packages inside them), and `__init__` of each package around them."""
    modules = set()
    for package in packages:
        names = package.split(".")
        modules |= {".".join((*names[:depth], "__init__")) for depth in range(1, len(names))}
        files = (entry.name for entry in resources.files(package).iterdir())
        modules |= {f"{package}.{name.removesuffix('.py')}" for name in files if name.endswith(".py")}
    return Program(texts={_path(module): source(module) for module in sorted(modules)})


def source(module: str) -> str:
    """The text of a module. Raises FileNotFoundError or ModuleNotFoundError where there is none of that name."""
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_text("utf-8")


def digest(content: bytes) -> str:
    """What tells one version from another in a file's name."""
    return hashlib.sha256(content).hexdigest()[:12]


def inline_command(host: Host, module: str, *arguments: str, secrets: tuple[Secret, ...] = ()) -> Command:
    """The command that runs `module`, which imports no other module of ours, from its text."""
    return Command(argv=(*host.python, *PYTHON_FLAGS, "-c", source(module), *arguments), secrets=secrets)


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"
