"""Command line of `inv`: Invoke with our settings, errors and output.

inv       the script that starts the program; installed to .venv/bin
program   Invoke's program with our settings and exit codes
parser    Invoke's parser with better errors for unknown names and empty values
command_result  what a command shows or plans, as text or as one JSON object; error objects
executor  a chain of tasks: validates the settings, then runs one task after the other
signals   Ctrl-C before, during and after a task
streams   standard streams that survive a closed pipe or a full disk, and escape controls
help      the list of commands, and the help of one
flags     commands and their flags, declared once; parsers for their values
log       operator.log of a run, and --debug
lock      one task at a time that changes something
waiting   a moving line while something takes long; the base of live displays
terminal  consoles, tables and yes/no questions
"""
