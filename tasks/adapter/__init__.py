"""`inv adapter.*`, `serve.*`, `chat`: a training's adapter, proven and brought to its use.

verbs    the signatures and help of the tasks
trained  a training's adapter as it came home, and the worker that works on it
check    inv adapter.check: its held-out loss in each form that it can be served in
merge    inv adapter.merge: one model folder, after the check
push     inv adapter.push: into a folder or a registry
card     the model card
serve    inv serve, serve.stop: vLLM in the cluster
served   inv serve.check: a server, asked what the training has answered
chat     inv chat: questions to a server or to the adapter itself
"""
