"""The JSON documents that commands print: one model for each, which also reads what another zsnapdb printed."""
