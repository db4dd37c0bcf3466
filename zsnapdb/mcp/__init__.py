"""Clones for the agent of a developer, by the Model Context Protocol on stdin and stdout (`zsnapdb mcp`).

It runs where the agent runs, asks `zsnapdb serve` over HTTP with the developer's token, and has no other rights.
"""
