"""The JSON documents that commands print. Each has one model, which can also read another version's output."""
