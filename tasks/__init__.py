"""Commands of `inv`. A command reads the settings, plans, acts and prints; the work is in remote and reports.

Only light modules may be imported here and at the top of a module with commands: `inv --list` imports all of them.
"""

import importlib

from invoke.collection import Collection

from remote.providers import PROVIDERS
from tasks.cli.flags import Command

_MODULES = "tasks.commands", "tasks.adapter.commands", "tasks.cluster.commands", "tasks.image.commands"
ns = Collection()
for _module in (*_MODULES, *(module for provider in PROVIDERS.values() for module in provider.commands)):
    for _command in vars(importlib.import_module(_module)).values():
        if isinstance(_command, Command):
            if _command.group and _command.group not in ns.collections:
                ns.add_collection(Collection(_command.group))
            (ns.collections[_command.group] if _command.group else ns).add_task(_command)
