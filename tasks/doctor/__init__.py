"""`inv doctor`: every check at once, a line each, with the one command or setting that mends what is wrong.

verbs      signature and help
doctor     the command: runs the checks, prints, exit code
catalogue  every check
check      a check as a value: what it asks, and the faults that it knows
answer     what a check says; a fault that can be said
facts      what several checks ask for, found out once
examine    the checks side by side, each with its deadline
printed    the answers as lines and as JSON
examples   what other modules say, for the document
document   docs/troubleshooting.md, made of the checks
checks     the checks by subject
"""
