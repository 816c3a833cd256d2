"""A model that is served somewhere, asked over its API.

client: a server that speaks OpenAI's protocol (vLLM does), careful with its key and its answers
inpod: the same from within its pod, so that the key stays in the cluster and no port is opened
"""
