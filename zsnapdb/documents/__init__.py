"""The JSON documents that commands print. Each has one model, which also reads documents of other versions."""
