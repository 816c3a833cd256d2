"""Clients made from the settings, with their failures translated to exit codes.

workers         the fleet's hosts and their commands: local processes or pods
worker_queries  queries to all workers before a run, with retries
target_cluster  the Kubernetes cluster, its provider, the values of its manifests
build_vm        the build VM, over SSH
registry        the registry of the settings, queried from the build VM; the image that pods run
secrets         passwords and tokens
prompt          hidden input from the terminal
"""
