"""The hot path: cuts a send stream into chunks, compresses, hashes and moves them in parallel, and reads them in order.

This package uses a store only through `ChunkSink` and `ChunkSource`.
"""
