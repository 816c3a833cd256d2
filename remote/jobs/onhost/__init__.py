"""The small program that runs on a host: detached jobs, and files moved in verified pieces.

`remote.jobs.agent` puts this package into the host's work folder and calls it as `python .../__main__.py VERB JSON`,
over whatever carries commands there. Standard library alone, Python 3.9 or newer, Linux. It answers in lines of
checksum and JSON and exits 0; when it cannot do what was asked it says why on standard error and exits 3, and 4 when
what it was sent ended early.

How fast it starts is part of every call, so a verb imports what it needs and no more: `__main__` knows which of
`jobs` and `files` has it, `supervisor` is for the start of a job alone, and `typing` is for the type checker alone.
"""
