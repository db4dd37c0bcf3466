"""Clones for the AI agent of a developer, by the Model Context Protocol on stdin and stdout (`zsnapdb mcp`).

It runs where the AI agent runs, sends HTTP requests to `zsnapdb serve` with the developer's token, and has no other
rights.
"""
