"""The JSON documents that commands print: one model for each, which also reads the output of another zsnapdb."""
