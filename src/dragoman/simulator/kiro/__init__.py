"""The Kiro service: refusal rules, endpoints, tokens, frames. It imports neither reader nor writer of the dialect."""
