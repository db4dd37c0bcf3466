"""Schemas and tables: catalogue, files, definitions, exact rows, transfer and cleaning."""
