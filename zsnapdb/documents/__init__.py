"""The JSON documents that commands print.

Each document has one model, which can also read the output of another zsnapdb version.
"""
