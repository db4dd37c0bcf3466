"""Clones over HTTP, in two processes: an unprivileged web process, and a root helper that accepts few requests.

Only the helper (`helper.py`) authenticates subjects and decides. The web process (`web_app.py`) passes tokens on. An
attacker who controls the web process can act only for subjects whose tokens pass through it at that time.
"""
