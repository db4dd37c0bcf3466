"""Schemas and tables: their catalogue, files, definitions, exact rows, transfer and cleaning."""
