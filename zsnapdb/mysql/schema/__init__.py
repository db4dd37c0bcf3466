"""Schemas and tables: their catalogue, files, shapes, exact rows, transfer and cleaning."""
