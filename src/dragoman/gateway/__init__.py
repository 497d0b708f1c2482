"""The gateway: a server between clients and upstreams of any dialect.

A request goes through four stages, over one `RequestContext` (`context`):

    admission → routing → attempts → delivery

The command line starts the gateway (`serve`, `workers`), and others mount it (`dragoman.asgi`). It serves and asks
through `dragoman.http`, and writes to its state folder, its admin socket and its log. Nothing below imports it.
"""
