"""Evaluation of the objectives of an instance."""
