"""What a training trains on, before it costs anything.

verbs    the signatures and help of the tasks
check    inv data.check: settings to a question, one worker's answer
printed  that answer for a terminal and as a page
"""
