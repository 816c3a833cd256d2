"""`inv adapter.*`, `serve.check`, `chat`: check and merge a training's adapter, and what serves it.

commands   the commands, with their flags and help
artifact   a collected adapter, and commands on it that a worker runs
check      inv adapter.check: its held-out loss in each form that can be served
merge      inv adapter.merge: one model folder, after the check
questions  inv serve.check: compares a server's answers with the recorded ones; inv chat
"""
