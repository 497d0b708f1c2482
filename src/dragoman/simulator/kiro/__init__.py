"""The simulated Kiro service: refusal rules, endpoints, tokens, frames. It does not use the codec of the dialect."""
