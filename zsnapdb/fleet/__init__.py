"""Jobs of several hosts, which an engine (Temporal) runs.

Workers run on the hosts, and control runs next to the engine.
"""
