"""Everything that crosses a machine boundary.

cluster: Kubernetes objects: read, render, plan and apply
fleet: the queue of trials, the ledger, and one outcome per trial
hosts: the Host protocol, and this machine as a host
image: the build VM and the image it builds
jobs: detached jobs that outlive the connection, and verified file transfer
pods: a pod as a host, through `kubectl exec`
serving: clients of a server that speaks OpenAI's protocol
ssh: a machine behind SSH as a host
"""
