"""The hot path: a send stream cut into chunks, compressed, hashed and moved in parallel, and back in order.

Sees a store only through `ChunkSink` and `ChunkSource`.
"""
