"""How Invoke runs here.

executor  a chain of tasks: settings first, then one task after the other
startup   Invoke's exit code for wrong usage, and its tracebacks over settings files
flags     numbers that are given as flags
lock      one task at a time that changes something
git       what git knows of the project
terminal  a console for tables, and a question
"""
