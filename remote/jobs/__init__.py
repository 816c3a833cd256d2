"""Detached jobs and verified files on any host.

agent: calls the host agent on a host, installs it at the first call
download: receives the files of a pull
host_agent: program that runs on the host
job: starts, follows and cancels a detached job
transfer: pushes and pulls folders, verified and resumable
"""
