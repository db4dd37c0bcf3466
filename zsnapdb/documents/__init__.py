"""The JSON documents that commands print. Each has one model, which can also read the output of another zsnapdb."""
