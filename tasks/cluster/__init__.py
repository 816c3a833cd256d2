"""`inv nodes`, `deploy`, `teardown`, `status`, `shell` and `logs`.

verbs     signatures and help
nodes     which nodes can take a pod, and why not the others
checks    nodes, controllers, rights, and results that would be lost, before a plan changes the cluster
deploy    observe, plan, act, wait
wait      waits for pods, and says why one does not come up
teardown  deletes what deploy made
status    the pods, their logs, a shell in one
"""
