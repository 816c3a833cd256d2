"""`inv doctor`: all checks at once, one line each, with a command or setting that fixes each problem.

commands  signature and help
doctor    the command: runs the checks, prints, sets the exit code
registry  list of all checks
check     a check: its question, function and possible faults
context   facts shared by several checks, computed once
runner    parallel run of the checks with a deadline
output    results as lines and as JSON
docs      docs/troubleshooting.md, from the checks and messages.json
checks    the checks by subject
"""
