"""Programs of one file for the build VM, each sent as the text of one command (`remote.hosts.bundle.inline_command`).

Standard library alone, Python 3.9 or newer (facts: 3.5); none imports another module of ours.

contents: what an image holds, run inside it
engine: as root, a second container engine with its data on the share
facts: system, processor, Python and user
feed: hands a secret from standard input to the named pipe of a job
login: a folder for the engine client's login, in memory where there is such a place
look: file systems, models, the engine's DOCKER_TMPDIR
"""
