"""Entry point of a job on the build VM, in its folder: `python .../remote/agent/build_vm/__main__.py job.json`."""

import sys

if __name__ == "__main__":
    folder = __file__.rsplit("/", 1)[0]
    # Replace this folder with the one above `remote`: this folder's module names may collide with other modules.
    sys.path = [folder.rsplit("/", 3)[0], *(path for path in sys.path if path != folder)]

from remote.agent.build_vm import job

if __name__ == "__main__":
    sys.exit(job.main())
