"""The hot path: it splits a send stream into chunks, and compresses, hashes and transfers the chunks in parallel.

It also reads the chunks back in order. This package uses a store only through `ChunkSink` and `ChunkSource`.
"""
