"""HTTP/1.1, spoken in one place: a server (`http.server`) and a client (`http.client`), both over httptools.

The gateway, the simulator, its fault proxy, the admin socket and the agent use them; nothing here knows what is said.
It opens sockets, and reads no files but certificates.
"""
