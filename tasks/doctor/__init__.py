"""`inv doctor`: all checks at once, one line each, with a command or setting that fixes each problem.

doctor    the command: list of all checks, their results as lines and as JSON, exit code, docs/troubleshooting.md
check     a check: its question, function and possible faults; the parallel run of checks with a deadline
context   facts shared by several checks, computed once
settings  `inv settings`: every value with its source
checks    the checks by subject
"""
