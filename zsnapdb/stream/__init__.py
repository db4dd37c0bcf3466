"""The hot path: splits a send stream into chunks, and compresses, hashes and transfers them in parallel.

It also reads the chunks back in order. This package uses a store only through `ChunkSink` and `ChunkSource`.
"""
