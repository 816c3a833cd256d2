"""Clients of a model server.

client: client of OpenAI's protocol, as vLLM serves it, over HTTP
"""
