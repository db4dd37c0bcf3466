"""Objectives, policy and evidence: the protection of an instance."""
