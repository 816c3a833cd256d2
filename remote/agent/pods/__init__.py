"""Programs of one file for pods, each sent as the text of one command (`remote.hosts.bundle.inline_command`).

None imports another module of ours.

exec_relay: runs a command in a pod and frames its output
link_output: links a job's output folder to a shared volume and becomes its command
list_attempts: a training's attempts on the shared volume
"""
