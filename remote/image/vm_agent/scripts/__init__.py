"""Single-file programs for the build VM, each sent as the text of one command (`remote.hosts.bundle.inline_command`).

Standard library only, Python 3.9 or newer (vm_info: 3.5); none imports another module of ours.

disk_info: file systems, models, and the engine's DOCKER_TMPDIR
engine: as root, a second container engine with its data on the share
inventory: packages and models of an image, run inside it
login: a configuration folder for the engine client's login, in memory if possible
send_token: writes a secret from standard input to a job's named pipe
vm_info: system, processor, Python and user
"""
