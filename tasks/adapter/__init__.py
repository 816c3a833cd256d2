"""`inv adapter.*`, `serve.*`, `chat`: check, merge, publish and serve a training's adapter.

artifact     a collected adapter, and commands on it that a worker runs
check        inv adapter.check: its held-out loss in each form that can be served
merge        inv adapter.merge: one model folder, after the check
push         inv adapter.push: to a folder, a registry or a bucket
model_card   the model card
serve        inv serve, serve.stop: vLLM in the cluster
serve_image  the check of the server's image, before anything changes
serve_check  inv serve.check: compares a server's answers with the recorded ones
chat         inv chat: questions to a server or to the adapter itself
"""
