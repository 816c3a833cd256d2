"""A model that is served somewhere, asked over its API.

client: a server that speaks OpenAI's protocol (vLLM does), careful with its key and its answers
"""
