"""Notifications of a run: started, restarted, stalled, budget at 80 %, ended. Standard library only.

The operator's machine and the first pod of a training's Job send the same events.

events: a notification, and the watch that derives it from attempts and progress
sender: a thread that delivers notifications, so that a receiver never delays a run
webhook: one signed POST to an https address, with the address checked when it connects
"""
