"""Detached jobs and verified files on any host.

agent: calls the program on a host, installs it the first time
incoming: the near end of a pull
job: starts, follows and cancels a detached job
onhost: the program that runs on the host
transfer: moves folders, verified and resumable
"""
