"""Schemas and tables: catalogue, files, shapes, exact rows, transfer and cleaning."""
