"""Clones for the AI agent of a developer, by the Model Context Protocol on stdin and stdout (`zsnapdb mcp`).

It runs where the AI agent runs. It sends HTTP requests with the developer's token to `zsnapdb serve`, and has no other
rights.
"""
