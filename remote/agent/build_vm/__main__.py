"""Entry point: `python .../remote/agent/build_vm/__main__.py job.json` in the job's folder, or `... ask` anywhere."""

import sys

if __name__ == "__main__":
    folder = __file__.rsplit("/", 1)[0]
    # Replace this folder with the one above `remote`: this folder's module names may collide with other modules.
    sys.path = [folder.rsplit("/", 3)[0], *(path for path in sys.path if path != folder)]
    if sys.argv[1:] == ["ask"]:
        from remote.agent.build_vm.registry_query import main
    else:
        from remote.agent.build_vm.job import main

    sys.exit(main())
