"""Hostile shapes against a real gateway process, and what a well-behaved client experiences meanwhile."""
