"""The JSON documents that commands print. One model per document also reads documents of other versions."""
