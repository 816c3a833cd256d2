"""remote: whatever crosses a machine boundary.

hosts: the protocol Host, and this machine as a host
ssh: a machine behind SSH as a host
pods: a pod as a host, by `kubectl exec`
jobs: jobs that outlive the connection, and verified files, on any host
cluster: Kubernetes: read, render, plan, change
image: the build VM and the image it builds
fleet: hosts and trials: a queue, a ledger, one end for each trial
"""
