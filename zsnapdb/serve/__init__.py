"""Clones by HTTP, in two processes: a web process that may nothing, and a helper of root's that takes few words.

The helper (`helper.py`) alone decides who asks and what he may. The web process (`web_app.py`) passes on tokens that it
was given, so who takes it over acts only for people whose tokens pass through it meanwhile.
"""
