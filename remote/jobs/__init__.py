"""Detached jobs and verified files on any host.

job: starts, follows and cancels a detached job
transfer: pushes and pulls folders, verified and resumable
"""
