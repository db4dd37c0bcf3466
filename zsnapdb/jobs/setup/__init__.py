"""The first hour: find a server, write what protects it, move its files, prove it, remove it."""
