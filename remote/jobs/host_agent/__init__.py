"""The program that runs on a host: detached jobs, and files moved in verified pieces.

`remote.jobs.agent` installs this package in the host's work folder and calls it as `python .../__main__.py VERB JSON`.
Standard library alone, Python 3.9 or newer, Linux. It answers in lines of check sum and JSON and exits 0. It exits 3 if
it cannot do what was asked, with the reason on standard error, and 4 if its input ended early.

Every call pays for its start, so a verb imports only what it needs, and `typing` is for the type checker alone.
`pathlib`, `contextlib`, `tempfile` and `subprocess` would cost a third more.

basics: what jobs and files share
files: verbs send, missing, receive
install: puts this program on the host; sent as the text of one command
jobs: verbs watch, cancel, holder, room, tail
starting: verb start
supervisor: the process that stays with a job
"""
