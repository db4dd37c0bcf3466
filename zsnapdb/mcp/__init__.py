"""Gives the AI agent of a developer clones by the Model Context Protocol on stdin and stdout (`zsnapdb mcp`).

The server runs on the AI agent's machine. It sends HTTP requests with the developer's token to `zsnapdb serve`, and has
no other rights.
"""
