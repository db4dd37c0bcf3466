"""Clones over HTTP, in two processes: an unprivileged web process, and a root helper that accepts few requests.

The helper (`helper.py`) alone authenticates subjects and decides. The web process (`api_app.py`) passes tokens on. An
attacker who controls the web process can act only for subjects whose tokens pass through the web process during the
attack.
"""
