"""adapter: operations on a trained adapter: verify, merge, chat.

lora: reads and checks an adapter's folder and its base; applies it to the base's weights
merge: base and adapter to one model folder, tensor by tensor
check: held-out loss and greedy answers of the adapter in each form in which it can be served; conversations with it
"""
