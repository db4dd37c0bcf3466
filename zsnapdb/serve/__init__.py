"""Clones by HTTP, in two processes: a web process without rights, and a root helper that accepts few requests.

The helper (`helper.py`) alone authenticates subjects and decides. The web process (`api_app.py`) passes tokens on. An
attacker who controls it can act only for the subjects whose tokens pass through it meanwhile.
"""
