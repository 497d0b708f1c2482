"""The HTTP client: connections to other services, kept and limited by lane, and the replies that come back.

`client.Client` is for async code, `blocking.send` for the rest. Nothing here knows a dialect or a credential.
"""
