"""The HTTP server: connections, their requests and their responses.

`serving.HttpServer` passes each request to one function, as an `Exchange`. The gateway listens with `serving.Acceptor`,
which limits and sheds connections; the simulator and the admin socket listen with `serving.Listener`.
"""
