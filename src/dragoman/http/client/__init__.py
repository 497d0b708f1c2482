"""The HTTP client: pools of connections to other services, and the responses.

`client.HttpClient` is for async code, `blocking.send` for other code. The package knows no dialects and no credentials.
"""
