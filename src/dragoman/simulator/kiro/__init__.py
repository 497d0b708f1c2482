"""The Kiro service: refusal rules, endpoints, tokens and frames. Imports nothing of the Kiro dialect, on purpose."""
