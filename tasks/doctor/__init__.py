"""`inv doctor`: all checks at once, one line each, with a command or setting that fixes each problem.

commands  signature and help
doctor    the command: runs the checks, prints, sets the exit code
registry  list of all checks
check     a check: its question, function and possible faults
result    result of a check; fault with its message and remedy
context   facts shared by several checks, computed once
runner    parallel run of the checks with a deadline
output    results as lines and as JSON
examples  messages of other modules, for the document
docs      docs/troubleshooting.md, generated from the checks
checks    the checks by subject
"""
