"""Objectives, policy and evidence: how well an instance is protected."""
