"""The HTTP server: connections, the requests that come over them, and the answers that go back.

`serving.HttpServer` gives each request to one function as an `Exchange`. The gateway listens by
`serving.Acceptor`, which limits and sheds connections; the simulator and the admin socket by `serving.Listener`.
"""
