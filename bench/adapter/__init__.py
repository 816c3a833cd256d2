"""adapter: after a fine-tuning: is what is served what was trained?

same: whether a base is the one that an adapter was trained on
lora: an adapter's folder, checked, and the weights that it changes
merge: base and adapter to one model folder, tensor by tensor; goes on where it stopped
shard: one safetensors file, written tensor by tensor and read back
check: the held-out loss of the adapter in each form that it can be served in
chat: conversations with an adapter as it was trained
ready: base and adapter, laid out for a server in the same pod
answering: greedy answers to held-out prompts, and which of them never end
"""
