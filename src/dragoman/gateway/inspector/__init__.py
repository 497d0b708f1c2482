"""The inspector: a process that serves a page about the requests of a gateway (docs/inspector.md).

`server` is its HTTP server on loopback. It reads recordings from the state folder and asks the gateway through the
admin socket; nothing here runs in the process of the gateway. docs/inspector_api.md describes the interface between
this package and the files of the page in `page/`.
"""
