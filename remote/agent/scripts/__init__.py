"""Programs of one file, each sent as the text of one command (`remote.hosts.bundle.inline_command`).

None imports another module of ours.

disk_info: file systems and models
install: installs a program of several modules
send_token: writes a secret from standard input to a job's named pipe
"""
