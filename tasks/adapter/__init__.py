"""`inv adapter.*`, `serve.*`, `chat`: check, merge, publish and serve a training's adapter.

commands   the commands, with their flags and help
artifact   a collected adapter, and commands on it that a worker runs
check      inv adapter.check: its held-out loss in each form that can be served
merge      inv adapter.merge: one model folder, after the check; the model card
serve      inv serve, serve.stop: vLLM in the cluster, after a check of its image
questions  inv serve.check: compares a server's answers with the recorded ones; inv chat
"""
