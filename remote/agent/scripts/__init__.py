"""Programs of one file, each sent as the text of one command (`remote.hosts.bundle.inline_command`).

None imports another module of ours.

disk_info: file systems, models, and the engine's DOCKER_TMPDIR
engine: as root, a second container engine with its data on the share
exec_relay: runs a command in a pod and frames its output
install: installs a program of several modules
link_output: links a job's output folder to a shared volume and becomes its command
list_attempts: a training's attempts on the shared volume
request_server: one HTTP request to the server in the same pod
server_software: versions of vLLM and of what it needs for an NF4 base
send_token: writes a secret from standard input to a job's named pipe
vm_info: system, processor, Python and user
"""
