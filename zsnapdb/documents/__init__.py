"""The JSON documents that commands print. Each document's model also reads documents of other versions."""
