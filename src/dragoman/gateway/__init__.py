"""The gateway: configuration, admission, routes, and the one place where I/O meets translation.

The command line starts it, and others mount it (`dragoman.asgi`). It serves and asks through `dragoman.http`, and
writes to its state folder, its admin socket and its log.
"""
