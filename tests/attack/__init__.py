"""Attacks against a gateway process, and the experience of a well-behaved client meanwhile."""
