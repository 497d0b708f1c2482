"""HTTP/1.1: a server (`http.server`) and a client (`http.client`), both over httptools.

The gateway, the simulator, its fault proxy, the admin socket and the agent use them. The package knows no dialects. It
opens sockets, and reads no files except certificates.
"""
