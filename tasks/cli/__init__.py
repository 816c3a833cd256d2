"""How Invoke runs here.

inv        the script that starts the program; installed to .venv/bin
program    Invoke's program, with our reading of settings and our exit codes
words      what is typed: chains, and what is wrong with an unknown word
executor   a chain of tasks: settings first, then one task after the other
interrupt  Ctrl-C before, during and after a task
streams    standard output that nobody reads, or that is full
foreign    text that a terminal must not obey
flags      numbers that are given as flags
lock       one task at a time that changes something
git        what git knows of the project
terminal   a console for tables, and a question
"""
