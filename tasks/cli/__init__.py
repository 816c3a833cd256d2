"""Command line of `inv`: Invoke with our settings, errors and output.

inv       the script that starts the program; installed to .venv/bin
program   Invoke's program with our settings and exit codes
parser    Invoke's parser with better errors for unknown names and empty values
executor  a chain of tasks: validates the settings, then runs one task after the other
signals   Ctrl-C before, during and after a task
streams   standard streams that survive a closed pipe or a full disk, and wrap lines on a terminal
sanitize  escapes of control characters, so that no text controls the terminal
flags     parsers for the values of flags
log       operator.log of a run, and --debug
lock      one task at a time that changes something
git       output of git commands
terminal  consoles, tables, JSON output and yes/no questions
pip_progress  pip with regular lines, for the Makefile
"""
