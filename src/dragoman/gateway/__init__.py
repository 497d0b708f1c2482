"""The gateway: a server between clients and upstreams of any dialect.

A request goes through four stages, over one `RequestContext` (`context`):

    admission → routing → attempts → delivery

The command line starts the gateway (`serve`, `server_workers`); other applications mount it (`dragoman.asgi`). Its
server and its client come from `dragoman.http`. It writes to its state folder, its admin socket and its log. No package
of a lower layer imports it.
"""
