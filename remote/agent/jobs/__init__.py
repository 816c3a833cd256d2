"""Program that runs on a host: detached jobs and verified file transfers.

`remote.jobs.job` installs this package in the host's work folder and calls it as `python .../__main__.py VERB JSON`.
It answers in lines of checksum and JSON and exits 0. It exits 3 if it cannot fulfil the request, with the reason on
standard error, and 4 if its input ended early.

Start-up time counts in every call, so a verb imports only what it needs, and `typing` is imported only for the type
checker. `pathlib`, `contextlib`, `tempfile` and `subprocess` would cost a third more.

files: verbs send, missing, receive
jobs: verbs start, watch, cancel, holder, room, tail
supervisor: process that runs a job's command to its end
"""
