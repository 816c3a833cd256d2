"""Detached jobs and verified files on any host.

agent: calls `remote.agent.jobs` on a host, installs it at the first call
job: starts, follows and cancels a detached job
transfer: pushes and pulls folders, verified and resumable
"""
