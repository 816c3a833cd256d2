"""`inv doctor`: all checks at once, one line each, with a command or setting that fixes each problem.

doctor             the command: list of all checks, their results as lines and as JSON, exit code
check              a check: its question, function and possible faults; facts shared by checks; their parallel run
settings_in_force  `inv settings`: every value with its source
checks             the checks by subject
"""
